"""A session that closes slowly, or never, does not keep other sessions from being closed."""

from __future__ import annotations

import asyncio

import pytest

from env_servers.env import Env
from env_servers.sessions import Sessions
from openrlhf_tir.protocol import ResetRequest


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
