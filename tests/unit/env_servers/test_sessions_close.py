"""A session that closes slowly, or never, does not keep other sessions from being closed."""

from __future__ import annotations

import asyncio

import pytest

from env_servers import sessions as sessions_module
from env_servers.env import Env
from env_servers.sessions import Session, Sessions
from openrlhf_tir.protocol import ResetRequest, StepReply, StepRequest
from openrlhf_tir.user_code.failures import Overrun


class Closing(Env):
    """Finishes its close when all `number` sessions have started theirs. The first one then raises."""

    started = 0

    def __init__(self, number: int, all_started: asyncio.Event) -> None:
        self._number = number
        self._all_started = all_started

    async def close(self) -> None:
        Closing.started += 1
        first = Closing.started == 1
        if Closing.started == self._number:
            self._all_started.set()
        await self._all_started.wait()
        if first:
            raise RuntimeError("no such container")


@pytest.mark.parametrize("reason", ["stopped", "expired", "owner gone"])
async def test_sessions_are_closed_concurrently_and_a_failing_close_stops_no_other(reason, monkeypatch):
    now = [0.0]
    all_started = asyncio.Event()
    monkeypatch.setattr(Closing, "started", 0)
    sessions = Sessions(lambda: Closing(3, all_started), max_sessions=8, ttl_s=1.0, clock=lambda: now[0])
    for i in range(3):
        await sessions.open(ResetRequest(session_id=f"actor.{i}"))
    now[0] = 2.0
    async with asyncio.timeout(60):  # closing one after another would wait for ever
        if reason == "owner gone":
            assert await sessions.close_owned("actor") == 3 and await sessions.close_owned("acto") == 0
        else:
            await (sessions.close_all() if reason == "stopped" else sessions.expire())
    assert len(sessions) == 0 and Closing.started == 3


class Stuck(Env):
    """Never returns from `close`, or is interrupted in it as a class that blocks its server is."""

    def __init__(self, failure: str) -> None:
        self._failure = failure

    async def close(self) -> None:
        if self._failure == "interrupted":
            raise Overrun("it blocked its process")
        await asyncio.Event().wait()


@pytest.mark.parametrize("failure", ["never returns", "interrupted"])
async def test_a_close_that_never_ends_or_is_interrupted_keeps_nothing_from_expiring(failure, monkeypatch):
    monkeypatch.setattr(sessions_module, "CLOSE_S", 0.05)
    now = [0.0]
    sessions = Sessions(lambda: Stuck(failure), max_sessions=8, ttl_s=1.0, clock=lambda: now[0])
    session, _ = await sessions.open(ResetRequest(session_id="s"))
    now[0] = 2.0
    async with asyncio.timeout(60):
        await sessions.expire()
    assert len(sessions) == 0 and session.close_error is not None


async def test_a_session_is_in_use_while_its_step_runs():
    now = [0.0]
    sessions = Sessions(Env, max_sessions=8, ttl_s=10.0, clock=lambda: now[0])
    session, _ = await sessions.open(ResetRequest(session_id="s"))
    may_end = asyncio.Event()

    async def execute(session: Session, request: StepRequest) -> StepReply:
        await may_end.wait()
        return StepReply(session_id=session.id, step_id=request.step_id)

    request = StepRequest(session_id="s", step_id=0, action="", deadline_s=60.0)
    step = asyncio.create_task(session.step(request, execute, keep=4))
    for now[0] in (5.0, 15.0):
        await asyncio.sleep(0)
        await sessions.expire()
    may_end.set()
    await step
    now[0] = 24.0
    await sessions.expire()
    assert len(sessions) == 1
    now[0] = 26.0
    await sessions.expire()
    assert len(sessions) == 0


class SlowToCancel(Env):
    """Does not return from `reset` for the task {"wait": True}, nor from its cancellation until it may."""

    may_end = asyncio.Event()

    async def reset(self, task, seed):
        if task.get("wait"):
            try:
                await asyncio.Event().wait()
            finally:
                await SlowToCancel.may_end.wait()
        return ""


async def reset_that_waits(sessions: Sessions) -> asyncio.Task:
    """Return a reset of session "s" that runs, and that waits."""
    reset = asyncio.create_task(sessions.open(ResetRequest(session_id="s", task={"wait": True})))
    while len(sessions) == 0:
        await asyncio.sleep(0)
    await asyncio.sleep(0)  # the reset runs
    return reset


async def test_a_reset_that_was_closed_leaves_the_session_that_has_its_id_by_now(monkeypatch):
    monkeypatch.setattr(SlowToCancel, "may_end", asyncio.Event())
    sessions = Sessions(SlowToCancel, max_sessions=8, ttl_s=1.0)
    async with asyncio.timeout(60):
        reset = await reset_that_waits(sessions)
        close = asyncio.create_task(sessions.close("s"))
        while len(sessions):
            await asyncio.sleep(0)
        second, _ = await sessions.open(ResetRequest(session_id="s"))
        SlowToCancel.may_end.set()
        await close
        with pytest.raises(asyncio.CancelledError):
            await reset
    assert sessions.get("s") is second


async def test_a_reset_that_goes_on_when_it_is_cancelled_keeps_no_server_from_ending(monkeypatch):
    monkeypatch.setattr(sessions_module, "CLOSE_S", 0.05)
    monkeypatch.setattr(SlowToCancel, "may_end", asyncio.Event())
    sessions = Sessions(SlowToCancel, max_sessions=8, ttl_s=1.0)
    async with asyncio.timeout(60):
        reset = await reset_that_waits(sessions)
        await sessions.close_all()
        assert not reset.done()
        SlowToCancel.may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await reset


async def test_a_session_is_in_use_while_its_reset_runs(monkeypatch):
    monkeypatch.setattr(SlowToCancel, "may_end", asyncio.Event())
    SlowToCancel.may_end.set()
    now = [0.0]
    sessions = Sessions(SlowToCancel, max_sessions=8, ttl_s=10.0, clock=lambda: now[0])
    async with asyncio.timeout(60):
        reset = asyncio.create_task(sessions.open(ResetRequest(session_id="s", task={"wait": True})))
        while len(sessions) == 0:
            await asyncio.sleep(0)
        now[0] = 20.0
        await sessions.expire()
        assert len(sessions) == 1
        await sessions.close_all()
        with pytest.raises(asyncio.CancelledError):
            await reset
