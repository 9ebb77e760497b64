"""Run: every check in order, each to its Finding. A check that is broken or skipped does not stop the others."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from ....config.servers import Actions
from . import load, sessions
from .kit import Broken, Finding, Kit, Options, Skip, Verdict

Check = Callable[[Kit], Awaitable[str]]
CHECKS: dict[str, Check] = {
    "schema and health": sessions.schema_and_health,
    "a valid action is ok": sessions.a_valid_action_is_ok,
    "a retried /reset is one session": sessions.reset_again_is_the_same_session,
    "a retried step runs once": sessions.a_retried_step_runs_once,
    "409 for a used step_id": sessions.a_used_step_id_is_409,
    "404 without a session": sessions.no_session_is_404,
    "422 for a malformed request": sessions.a_malformed_request_is_422,
    "401 without the token": load.without_the_token_is_401,
    "413 for a large body": load.too_large_is_413,
    "a failing action": sessions.a_failing_action_leaves_the_session_usable,
    "end and rewards": sessions.the_end_and_the_rewards_are_told,
    "determinism under a seed": sessions.a_seed_determines_the_episode,
    "state": sessions.the_schema_tells_whether_state_is_kept,
    "session isolation": sessions.sessions_do_not_see_each_other,
    "concurrency": load.steps_at_once_are_each_answered,
    "batches": load.a_batch_is_answered_item_by_item,
    "deadline": load.a_deadline_is_kept,
    "capacity": load.a_full_server_says_so,
    "leaks": load.long_use_leaves_nothing,
}
"""What the table calls it -> the check, in the order they run."""


async def check_server(
    url: str,
    actions: Actions,
    options: Options = Options(),
    *,
    token: str | None = None,
    on_finding: Callable[[Finding], None] = lambda _: None,
) -> list[Finding]:
    """One Finding per check, also told to `on_finding` as it comes. Best on a server of its own: it counts sessions."""
    findings = []
    async with Kit(url, actions, options, token=token) as kit:
        for name, check in CHECKS.items():
            finding = await _judge(name, check, kit)
            findings.append(finding)
            on_finding(finding)
    return findings


async def _judge(name: str, check: Check, kit: Kit) -> Finding:
    start = time.perf_counter()
    verdict: Verdict = "pass"
    try:
        fact = await check(kit)
    except Broken as e:
        verdict, fact = "fail", str(e)
    except Skip as e:
        verdict, fact = "skip", str(e)
    return Finding(name, verdict, fact, time.perf_counter() - start)
