"""Check what a server promises to one caller, over one or two sessions.

Each check is `async (kit) -> fact`: it opens sessions of its own, says in a sentence what it has observed, and closes
the sessions. It raises Broken with the fact that contradicts the protocol, or Skip if it needs an action that is not
known for the environment. In the order in which run.py calls them:

    the server       schema_and_health, a_valid_action_is_ok
    retries          reset_again_is_the_same_session, a_retried_step_runs_once, a_used_step_id_is_409
    wrong requests   no_session_is_404, a_malformed_request_is_422
    episodes         a_failing_action_leaves_the_session_usable, the_end_and_the_rewards_are_told,
                     a_seed_determines_the_episode
    state            the_schema_tells_whether_state_is_kept, sessions_do_not_see_each_other
"""

from __future__ import annotations

import asyncio
from typing import Any

from ....config.servers import SECRET
from ....protocol import ResetReply, StepReply
from .kit import Broken, Kit, Skip, expect_status, read

ENDING_STEPS = 8
"""Valid actions after which an episode that has neither ended nor rewarded is taken for one that does neither."""


async def schema_and_health(kit: Kit) -> str:
    """Check that /schema and /health agree, and that the server can run something."""
    schema = await kit.schema()
    health = await kit.health()
    if schema.env != health.env:
        raise Broken(f"/schema says env {schema.env!r}, /health {health.env!r}")
    if schema.capacity < 1:
        raise Broken(f"capacity {schema.capacity}: the server says that it runs nothing")
    if health.status != "ok":
        raise Broken(f"/health says {health.status}")
    return f"{schema.env}, capacity {schema.capacity}, isolation {health.isolation}"


async def a_valid_action_is_ok(kit: Kit) -> str:
    """Check that a valid action works.

    This also finds the process that holds sessions, which a server of several processes names in its reply to /reset.
    All later checks talk to that process: `kit.base` is set to it.
    """
    session = await kit.open()
    reply = read(ResetReply, await kit.reset(session))
    if reply.server and reply.server.rstrip("/") != kit.base:
        kit.base = reply.server.rstrip("/")
        session = await kit.open()
    step = await kit.ok(session, 0)
    await kit.close(session)
    fact = f"observation {step.observation[:40]!r}"
    return fact if kit.base == kit.url else f"{fact}, sessions are held by {kit.base}"


async def reset_again_is_the_same_session(kit: Kit) -> str:
    """Check that a /reset that a client repeats opens no second session, and one with another seed is refused."""
    sessions_before = (await kit.health()).sessions
    session = await kit.open(seed=1)
    first = await kit.reset(session, seed=1)
    again = await kit.reset(session, seed=1)
    if (again.status, again.text) != (200, first.text):
        raise Broken(f"the same /reset again answered {again.status} {again.text[:80]!r}")
    opened = (await kit.health()).sessions - sessions_before
    if opened > 1:
        raise Broken(f"three equal requests opened {opened} sessions")
    expect_status(await kit.reset(session, seed=2), 409, "/reset of an open session with another seed")
    await kit.close(session)
    return "same reply, one session; another seed is 409"


async def a_retried_step_runs_once(kit: Kit) -> str:
    """Check that a step_id is executed once, whether it is repeated at the same time, afterwards or much later."""
    session = await kit.open()
    executed_before = await kit.metric("env_steps_total")
    at_once = await asyncio.gather(*[kit.step(session, 0) for _ in range(4)])
    answers = [*at_once, await kit.step(session, 0)]
    for answer in answers:
        read(StepReply, answer)
    if len({answer.text for answer in answers}) > 1:
        raise Broken("the same step_id got different replies: it ran more than once")
    executed_after = await kit.metric("env_steps_total")
    if executed_before is not None and executed_after is not None and executed_after - executed_before != 1:
        raise Broken(f"five requests with one step_id were executed {executed_after - executed_before:g} times")
    await kit.ok(session, 1)
    earlier = await kit.step(session, 0)
    if earlier.text != answers[0].text:
        raise Broken("an earlier step_id no longer returns its reply")
    await kit.close(session)
    if executed_before is None:
        return "five requests, one reply (no env_steps_total in /metrics to count by)"
    return "five requests, one reply, one execution"


async def a_used_step_id_is_409(kit: Kit) -> str:
    """Check that a step_id with another action is refused, instead of answered with the reply to the first one."""
    session = await kit.open()
    await kit.ok(session, 0)
    expect_status(await kit.step(session, 0, kit.actions.valid + " "), 409, "a used step_id with another action")
    await kit.close(session)
    return "refused"


async def no_session_is_404(kit: Kit) -> str:
    """Check that a step of a session that is not open is refused."""
    expect_status(await kit.step("check-never-opened", 0), 404, "a step of a session that was never opened")
    session = await kit.open()
    await kit.close(session)
    expect_status(await kit.step(session, 0), 404, "a step of a closed session")
    return "never opened, closed"


async def a_malformed_request_is_422(kit: Kit) -> str:
    """Check that a body that the protocol does not know is refused, and leaves the session as it is."""
    session = await kit.open()
    valid = kit.step_body(session, 0)
    bodies: tuple[dict[str, Any], ...] = (
        {},
        {**valid, "step_id": -1},
        {**valid, "deadline_s": "soon"},
        {**valid, "extra": 1},
    )
    for body in bodies:
        expect_status(await kit.send("POST", "/step", body), 422, f"the body {str(body)[:100]}")
    await kit.ok(session, 0)
    await kit.close(session)
    return f"{len(bodies)} bodies"


async def a_failing_action_leaves_the_session_usable(kit: Kit) -> str:
    """Check that a failing action is an outcome, not an HTTP error, and that the next action works."""
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
    """Check that two episodes of one task, seed and sequence of actions are equal, also at the same time."""
    first, second = await asyncio.gather(_episode(kit, seed=7), _episode(kit, seed=7))
    for turn, (in_first, in_second) in enumerate(zip(first, second, strict=True)):
        if in_first != in_second:
            raise Broken(
                f"same task, seed and actions, but turn {turn} is {str(in_first)[:60]} and {str(in_second)[:60]}"
            )
    return "two episodes of three turns are equal"


async def _episode(kit: Kit, seed: int) -> list[tuple[Any, ...]]:
    """Return the first observation, then (observation, reward, done, truncated) of three valid actions."""
    session = await kit.open(seed=seed)
    # The same /reset again, which returns the same reply: `open` keeps only the session's id.
    first = read(ResetReply, await kit.reset(session, seed=seed))
    replies = [await kit.ok(session, step_id) for step_id in range(3)]
    await kit.close(session)
    return [
        (first.observation,),
        *((reply.observation, reply.reward, reply.done, reply.truncated) for reply in replies),
    ]


async def the_end_and_the_rewards_are_told(kit: Kit) -> str:
    """Check the end of an episode and its rewards, which decide what is trained, and that a retried step repeats them.

    With an ending action, one step must end the episode. Without one, valid actions are sent until the episode ends,
    ENDING_STEPS at most, and an episode that goes on is right.
    """
    ending = kit.actions.ending
    session = await kit.open(kit.actions.ending_task if ending is not None else None)
    replies: list[StepReply] = []
    for step_id in range(1 if ending is not None else ENDING_STEPS):
        replies.append(await kit.ok(session, step_id, ending))
        if replies[-1].done or replies[-1].truncated:
            break
    last = replies[-1]
    if last.done and last.truncated:
        raise Broken("a reply is both done and truncated: an episode ends as finished or is cut")
    is_over = last.done or last.truncated
    if ending is not None and not is_over:
        raise Broken(
            "the ending action neither ends nor cuts the episode: done and truncated are false, observation"
            f" {last.observation[:40]!r}"
        )
    again = await kit.ok(session, len(replies) - 1, ending)
    if again != last:
        raise Broken(
            f"the last step, sent again, has reward {again.reward} and done {again.done};"
            f" it had {last.reward} and {last.done}"
        )
    await kit.close(session)
    rewards = [f"{reply.reward:g}" for reply in replies if reply.reward is not None]
    if not is_over and not rewards:
        return (
            f"{ENDING_STEPS} valid actions neither ended the episode nor had a reward:"
            " the trainer judges (else give --ending-action, --ending-task)"
        )
    if last.done:
        end = "done"
    elif last.truncated:
        end = "truncated"
    else:
        end = "not over"
    return f"{end} after {len(replies)} steps; rewards {', '.join(rewards) or 'none: the trainer judges'}"


async def sessions_do_not_see_each_other(kit: Kit) -> str:
    """Check that what one session writes shows neither in another one that is open nor in one that is opened later."""
    write, look = _state_actions(kit)
    writer = await kit.open()
    other = await kit.open()
    for step_id in range(3):
        written = read(StepReply, await kit.step(writer, step_id, write))
        if written.outcome != "ok":
            raise Broken(f"the writing action has outcome {written.outcome}")
        seen = read(StepReply, await kit.step(other, step_id, look))
        if SECRET in seen.model_dump_json():
            raise Broken(f"one session shows what another one left: {seen.observation[:80]!r}")
    await kit.close(writer)
    later = await kit.open()
    if SECRET in (await kit.step(later, 0, look)).text:
        raise Broken("a new session shows what a closed one left")
    await kit.close(other)
    await kit.close(later)
    return "nothing of a session shows in a concurrent or a later one"


async def the_schema_tells_whether_state_is_kept(kit: Kit) -> str:
    """Check `stateful` in /schema: whether a step finds what an earlier step of its session left."""
    write, look = _state_actions(kit)
    stateful = (await kit.schema()).stateful
    session = await kit.open()
    await kit.ok(session, 0, write)
    is_kept = SECRET in (await kit.ok(session, 1, look)).model_dump_json()
    await kit.close(session)
    if is_kept != stateful:
        raise Broken(
            f"/schema says stateful = {str(stateful).lower()}, and a step"
            f" {'finds' if is_kept else 'does not find'} what the one before it left"
        )
    return "a step finds what the one before it left" if is_kept else "each step starts anew"


def _state_actions(kit: Kit) -> tuple[str, str]:
    """Return the action that leaves SECRET in a session and the one that shows it. Raises Skip if one is not known."""
    if kit.actions.write is None or kit.actions.read is None:
        raise Skip("no actions known that leave and look for something; give --write-action and --read-action")
    return kit.actions.write, kit.actions.read
