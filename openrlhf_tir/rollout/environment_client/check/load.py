"""Check what a server promises to many callers, its limits, and that long use leaves nothing.

Each check is `async (kit) -> fact`, and raises Broken or Skip.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from urllib.parse import urlsplit

from pydantic import ValidationError

from ....protocol import StepReply
from .kit import Answer, Broken, Kit, Skip, expect_status, read

DEADLINE_S = 0.5
"""Deadline of a slow step."""
LATE_S = 1.5
"""By how much an answer may miss it: the way there and back, and killing what runs."""
IDLE_S = 5.0
"""Seconds after which nothing may run any more once a caller has been answered; twice as many after a flood."""
HEADER_WAIT_S = 1.0
"""How long a server may take to refuse a body by its announced size; after that the body is sent."""
BATCH = 8


async def steps_at_once_are_each_answered(kit: Kit) -> str:
    """Check that steps of many sessions at once are each answered, and measure how long that takes."""
    concurrency = kit.options.concurrency
    sessions = await asyncio.gather(*[kit.open() for _ in range(concurrency)])

    async def milliseconds(session: str, step_id: int) -> float:
        start = time.perf_counter()
        await kit.ok(session, step_id)
        return 1e3 * (time.perf_counter() - start)

    durations: list[float] = []
    for step_id in range(3):
        durations += await asyncio.gather(*[milliseconds(session, step_id) for session in sessions])
    await asyncio.gather(*[kit.close(session) for session in sessions])
    durations.sort()
    p99 = durations[int(0.99 * (len(durations) - 1))]
    return f"{len(durations)} steps, {concurrency} at once: p50 {statistics.median(durations):.0f} ms, p99 {p99:.0f} ms"


async def a_batch_is_answered_item_by_item(kit: Kit) -> str:
    """Check that every item of a batch is answered, and that one without a session does not hurt the others."""
    sessions = [await kit.open() for _ in range(BATCH)]
    items = [kit.step_body(session, 0) for session in (*sessions, "check-never-opened")]
    outcomes = {reply.session_id: reply.outcome for reply in _lines(await kit.send("POST", "/step_batch", items))}
    if outcomes.keys() != {item["session_id"] for item in items}:
        raise Broken(f"{len(items)} items, answers for {len(outcomes)} of them")
    if outcomes != dict.fromkeys(sessions, "ok") | {"check-never-opened": "env_error"}:
        raise Broken(f"one unknown session among {len(items)} items, and the outcomes {sorted(outcomes.values())}")
    for session in sessions:
        await kit.close(session)
    return f"{BATCH} ok and 1 refused in one batch"


async def a_deadline_is_kept(kit: Kit) -> str:
    """Check that a step that is too slow is answered `timeout` in time, also when it is sent again, and is ended."""
    if kit.actions.slow is None:
        raise Skip("no slow action known; give --slow-action and --slow-task")
    session = await kit.open(kit.actions.slow_task)
    start = time.perf_counter()
    answer = await kit.step(session, 0, kit.actions.slow, DEADLINE_S)
    took = time.perf_counter() - start
    reply = read(StepReply, answer)
    if reply.outcome != "timeout":
        raise Broken(
            f"a step that missed its deadline of {DEADLINE_S:g} s has outcome {reply.outcome}, after {took:.1f} s"
        )
    if took > DEADLINE_S + LATE_S:
        raise Broken(f"answered {took:.1f} s after a step with a deadline of {DEADLINE_S:g} s")
    if read(StepReply, await kit.step(session, 0, kit.actions.slow, DEADLINE_S)).outcome != "timeout":
        raise Broken("the retry of a timed-out step did something else")
    await kit.close(session)
    await _idle(kit, IDLE_S)
    return f"timeout after {took:.2f} s (deadline {DEADLINE_S:g} s), nothing runs on"


async def a_full_server_says_so(kit: Kit) -> str:
    """Check that a server refuses what it has no room for with 429 and Retry-After, and is well afterwards."""
    if kit.actions.slow is None:
        raise Skip("no slow action known; give --slow-action and --slow-task")
    flood = kit.options.flood
    names = [f"check-flood-{time.time_ns()}-{number}" for number in range(flood)]
    opened = await asyncio.gather(*[kit.reset(name, kit.actions.slow_task) for name in names])
    sessions = [name for name, answer in zip(names, opened, strict=True) if answer.status == 200]
    answers = await asyncio.gather(*[kit.step(session, 0, kit.actions.slow, 2.0) for session in sessions])
    refused = [answer for answer in (*opened, *answers) if answer.status != 200]
    for answer in refused:
        expect_status(answer, 429, f"one of {flood} requests at once")
        retry_after = answer.headers.get("Retry-After", answer.headers.get("retry-after"))
        if not _is_positive(retry_after):
            raise Broken(f"429 with Retry-After {retry_after!r}: the caller cannot know when to return")
    outcomes = {read(StepReply, answer).outcome for answer in answers if answer.status == 200}
    if outcomes - {"ok", "timeout", "capacity", "model_error"}:
        raise Broken(f"outcomes {sorted(outcomes)} under load")
    for session in sessions:
        await kit.close(session)
    await _idle(kit, 2 * IDLE_S)
    session = await kit.open()
    await kit.ok(session, 0)
    await kit.close(session)
    if not refused:
        return f"took all {flood} (raise --flood to see it refuse), then well"
    return f"{len(refused)} of {flood} refused with 429 and Retry-After, then well"


async def too_large_is_413(kit: Kit) -> str:
    """Check that a body that is too large is refused.

    The request is written by hand: a client library may see the connection break while it still sends, and lose the
    answer.
    """
    at = urlsplit(kit.base)
    head = (
        f"POST {at.path}/step HTTP/1.1\r\nHost: {at.netloc}\r\nContent-Type:"
        f" application/json\r\nContent-Length: {kit.options.oversize_bytes}\r\n"
    )
    head += f"Authorization: Bearer {kit.token}\r\n\r\n" if kit.token else "\r\n"
    writer = None
    try:
        reader, writer = await asyncio.open_connection(
            at.hostname, at.port or (443 if at.scheme == "https" else 80), ssl=at.scheme == "https"
        )
        writer.write(head.encode())
        line = asyncio.create_task(reader.readline(), name="status line")
        if not (await asyncio.wait([line], timeout=HEADER_WAIT_S))[0]:
            await _send_body(writer, kit.options.oversize_bytes)
        status = (await asyncio.wait_for(line, kit.options.timeout_s)).split()[1:2]
    except (OSError, TimeoutError) as e:
        raise Broken(f"a body of {kit.options.oversize_bytes >> 20} MiB got no answer: {type(e).__name__}") from e
    finally:
        if writer is not None:
            writer.close()
    if status != [b"413"]:
        raise Broken(
            f"a body of {kit.options.oversize_bytes >> 20} MiB was answered with"
            f" {(status or [b'nothing'])[0].decode()}, not 413"
        )
    return f"{kit.options.oversize_bytes >> 20} MiB refused"


async def without_the_token_is_401(kit: Kit) -> str:
    """Check that everything but /health wants the token."""
    expect_status(await kit.send("GET", "/health", authorized=False), 200, "/health without a token")
    if kit.token is None:
        raise Skip("no token given, and the server needs none")
    for method, path, body in (
        ("GET", "/schema", None),
        ("POST", "/reset", {}),
        ("POST", "/step", kit.step_body("s", 0)),
        ("GET", "/metrics", None),
    ):
        expect_status(await kit.send(method, path, body, authorized=False), 401, f"{method} {path} without the token")
    return "/schema, /reset, /step, /metrics; /health is open"


async def long_use_leaves_nothing(kit: Kit) -> str:
    """Check that many sessions of ten steps leave no session and take no memory.

    `concurrency` of them are open at once. Memory is compared with what it was after a tenth of the steps, when pools
    and caches are full.
    """
    sessions_before = (await kit.health()).sessions
    steps = kit.options.steps

    async def use(total: int) -> None:
        starts = iter(range(0, total, 10))

        async def use_sessions() -> None:
            for start in starts:
                session = await kit.open()
                for step_id in range(min(10, total - start)):
                    await kit.ok(session, step_id)
                await kit.close(session)

        await asyncio.gather(*[use_sessions() for _ in range(kit.options.concurrency)])

    start = time.perf_counter()
    await use(steps // 10)
    early = await kit.metric("process_resident_memory_bytes")
    await use(steps - steps // 10)
    rate = steps / (time.perf_counter() - start)
    late = await kit.metric("process_resident_memory_bytes")
    left = (await kit.health()).sessions - sessions_before
    if left > 0:
        raise Broken(f"{left} sessions are left after {steps} steps, all of them closed")
    if early is None or late is None:
        return (
            f"{steps} steps ({rate:.0f}/s), no session left;"
            " memory unknown (no process_resident_memory_bytes in /metrics)"
        )
    grown = (late - early) / (1 << 20)
    if grown > kit.options.max_growth_mib:
        raise Broken(
            f"memory grew by {grown:.0f} MiB in {steps - steps // 10} steps (allowed: {kit.options.max_growth_mib:g})"
        )
    return f"{steps} steps ({rate:.0f}/s), no session left, memory {grown:+.0f} MiB"


def _lines(answer: Answer) -> list[StepReply]:
    expect_status(answer, 200, "/step_batch")
    try:
        return [StepReply.model_validate_json(line) for line in answer.text.splitlines() if line]
    except ValidationError as e:
        raise Broken(f"/step_batch sent a line that is no StepReply: {e.errors(include_url=False)[0]['msg']}") from None


async def _idle(kit: Kit, within_s: float) -> None:
    """Wait until nothing runs; /health is asked again and again, since it has no event to wait for."""
    give_up = time.perf_counter() + within_s
    while running := (await kit.health()).running:
        if time.perf_counter() > give_up:
            raise Broken(f"{running} executions still run {within_s:g} s after their callers were answered")
        await asyncio.sleep(0.05)


async def _send_body(writer: asyncio.StreamWriter, size: int) -> None:
    try:
        for _ in range(size >> 16):
            writer.write(bytes(1 << 16))
            await writer.drain()
    except ConnectionError:
        return  # refused as it came: the answer is there to be read


def _is_positive(retry_after: str | None) -> bool:
    try:
        return float(retry_after or 0) > 0
    except ValueError:
        return False
