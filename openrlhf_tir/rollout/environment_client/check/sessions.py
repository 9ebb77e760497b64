"""Checks of one caller: what a session promises. Each is `async (kit) -> fact`, raising Broken or Skip."""

from __future__ import annotations

import asyncio
from typing import Any

from ....config.servers import SECRET
from ....protocol import ResetReply, StepReply
from .kit import Broken, Kit, Skip, expect_status, read


async def schema_and_health(kit: Kit) -> str:
    schema, health = await kit.schema(), await kit.health()
    if schema.env != health.env:
        raise Broken(f"/schema says env {schema.env!r}, /health {health.env!r}")
    if schema.capacity < 1:
        raise Broken(f"capacity {schema.capacity}: the server says that it runs nothing")
    if health.status != "ok":
        raise Broken(f"/health says {health.status}")
    return f"{schema.env}, capacity {schema.capacity}, isolation {health.isolation}"


async def a_valid_action_is_ok(kit: Kit) -> str:
    """Also finds the process that holds sessions: all later checks talk to it."""
    session = await kit.open()
    reply = read(ResetReply, await kit.reset(session))
    if reply.server and reply.server.rstrip("/") != kit.base:
        kit.base = reply.server.rstrip("/")
        session = await kit.open()
    step = await kit.ok(session, 0)
    await kit.close(session)
    return f"observation {step.observation[:40]!r}" + (
        f", sessions are held by {kit.base}" if kit.base != kit.url else ""
    )


async def reset_again_is_the_same_session(kit: Kit) -> str:
    before = (await kit.health()).sessions
    session = await kit.open(seed=1)
    first, again = await kit.reset(session, seed=1), await kit.reset(session, seed=1)
    if (again.status, again.text) != (200, first.text):
        raise Broken(f"the same /reset again answered {again.status} {again.text[:80]!r}")
    opened = (await kit.health()).sessions - before
    if opened > 1:
        raise Broken(f"three equal requests opened {opened} sessions")
    expect_status(await kit.reset(session, seed=2), 409, "/reset of an open session with another seed")
    await kit.close(session)
    return "same reply, one session; another seed is 409"


async def a_retried_step_runs_once(kit: Kit) -> str:
    session = await kit.open()
    before = await kit.metric("env_steps_total")
    at_once = await asyncio.gather(*[kit.step(session, 0) for _ in range(4)])
    answers = [*at_once, await kit.step(session, 0)]
    for answer in answers:
        read(StepReply, answer)
    if len({answer.text for answer in answers}) > 1:
        raise Broken("the same step_id got different replies: it ran more than once")
    after = await kit.metric("env_steps_total")
    if before is not None and after is not None and after - before != 1:
        raise Broken(f"five requests with one step_id were executed {after - before:g} times")
    await kit.ok(session, 1)
    if (await kit.step(session, 0)).text != answers[0].text:
        raise Broken("an earlier step_id no longer returns its reply")
    await kit.close(session)
    return "five requests, one reply" + (
        ", one execution" if before is not None else " (no env_steps_total in /metrics to count by)"
    )


async def a_used_step_id_is_409(kit: Kit) -> str:
    session = await kit.open()
    await kit.ok(session, 0)
    expect_status(await kit.step(session, 0, kit.actions.valid + " "), 409, "a used step_id with another action")
    await kit.close(session)
    return "refused"


async def no_session_is_404(kit: Kit) -> str:
    expect_status(await kit.step("check-never-opened", 0), 404, "a step of a session that was never opened")
    session = await kit.open()
    await kit.close(session)
    expect_status(await kit.step(session, 0), 404, "a step of a closed session")
    return "never opened, closed"


async def a_malformed_request_is_422(kit: Kit) -> str:
    session = await kit.open()
    for body in (
        {},
        kit.step_body(session, -1),
        {**kit.step_body(session, 0), "deadline_s": "soon"},
        {**kit.step_body(session, 0), "extra": 1},
    ):
        expect_status(await kit.send("POST", "/step", body), 422, f"the body {str(body)[:100]}")
    await kit.ok(session, 0)
    await kit.close(session)
    return "4 bodies"


async def a_failing_action_leaves_the_session_usable(kit: Kit) -> str:
    if kit.actions.failing is None:
        raise Skip("no failing action known; give --failing-action")
    session = await kit.open()
    reply = read(StepReply, await kit.step(session, 0, kit.actions.failing))
    if reply.outcome not in ("model_error", "env_error"):
        raise Broken(f"a failing action has outcome {reply.outcome}")
    await kit.ok(session, 1)
    await kit.close(session)
    return f"outcome {reply.outcome}, then ok"


async def a_seed_determines_the_episode(kit: Kit) -> str:
    async def episode(seed: int) -> list[tuple[Any, ...]]:
        session = await kit.open(seed=seed)
        observation = read(ResetReply, await kit.reset(session, seed=seed)).observation
        replies = [await kit.ok(session, k) for k in range(3)]
        await kit.close(session)
        return [(observation,), *((r.observation, r.reward, r.done, r.truncated) for r in replies)]

    one, other = await asyncio.gather(episode(7), episode(7))
    for turn, (a, b) in enumerate(zip(one, other, strict=True)):
        if a != b:
            raise Broken(f"same task, seed and actions, but turn {turn} is {str(a)[:60]} and {str(b)[:60]}")
    return "two episodes of three turns are equal"


ENDING_STEPS = 8
"""Valid actions after which an episode that has neither ended nor rewarded is taken for one that does neither."""


async def the_end_and_the_rewards_are_told(kit: Kit) -> str:
    """`done`, `truncated` and `reward` decide what is trained: they are there, and a retried step repeats them."""
    ending = kit.actions.ending
    session = await kit.open(kit.actions.ending_task if ending is not None else None)
    replies: list[StepReply] = []
    while len(replies) < (1 if ending is not None else ENDING_STEPS) and not (
        replies and (replies[-1].done or replies[-1].truncated)
    ):
        replies.append(await kit.ok(session, len(replies), ending))
    last = replies[-1]
    if last.done and last.truncated:
        raise Broken("a reply is both done and truncated: an episode ends as finished or is cut")
    over = last.done or last.truncated
    if ending is not None and not over:
        raise Broken(
            "the ending action neither ends nor cuts the episode: done and truncated are false, observation"
            f" {last.observation[:40]!r}"
        )
    if (again := await kit.ok(session, len(replies) - 1, ending)) != last:
        raise Broken(
            f"the last step, sent again, has reward {again.reward} and done {again.done};"
            f" it had {last.reward} and {last.done}"
        )
    await kit.close(session)
    given = [r.reward for r in replies if r.reward is not None]
    if not over and not given:
        return (
            f"{ENDING_STEPS} valid actions neither ended the episode nor had a reward:"
            " the trainer judges (else give --ending-action, --ending-task)"
        )
    how = "done" if last.done else "truncated" if last.truncated else "not over"
    return (
        f"{how} after {len(replies)} steps; rewards {', '.join(f'{r:g}' for r in given) or 'none: the trainer judges'}"
    )


async def sessions_do_not_see_each_other(kit: Kit) -> str:
    if kit.actions.write is None or kit.actions.read is None:
        raise Skip("no actions known that leave and look for something; give --write-action and --read-action")
    one, other = await kit.open(), await kit.open()
    for step in range(3):
        wrote = read(StepReply, await kit.step(one, step, kit.actions.write))
        if wrote.outcome != "ok":
            raise Broken(f"the writing action has outcome {wrote.outcome}")
        seen = read(StepReply, await kit.step(other, step, kit.actions.read))
        if SECRET in seen.model_dump_json():
            raise Broken(f"one session shows what another one left: {seen.observation[:80]!r}")
    await kit.close(one)
    late = await kit.open()
    if SECRET in (await kit.step(late, 0, kit.actions.read)).text:
        raise Broken("a new session shows what a closed one left")
    for session in (other, late):
        await kit.close(session)
    return "nothing of a session shows in a concurrent or a later one"


async def the_schema_tells_whether_state_is_kept(kit: Kit) -> str:
    if kit.actions.write is None or kit.actions.read is None:
        raise Skip("no actions known that leave and look for something; give --write-action and --read-action")
    stateful = (await kit.schema()).stateful
    session = await kit.open()
    await kit.ok(session, 0, kit.actions.write)
    kept = SECRET in (await kit.ok(session, 1, kit.actions.read)).model_dump_json()
    await kit.close(session)
    if kept != stateful:
        raise Broken(
            f"/schema says stateful = {str(stateful).lower()}, and a step {'finds' if kept else 'does not find'} what"
            " the one before it left"
        )
    return "a step finds what the one before it left" if kept else "each step starts anew"
