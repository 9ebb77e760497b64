"""One session that closes slowly, or not at all, is no other session's trouble."""

from __future__ import annotations

import asyncio

import pytest

from env_servers.env import Env
from env_servers.sessions import Sessions
from openrlhf_tir.protocol import ResetRequest


class Closing(Env):
    """Ends its close when all of `number` sessions have begun theirs; the first of them raises then."""

    begun = 0

    def __init__(self, number: int, all_begun: asyncio.Event) -> None:
        self._number, self._all_begun = number, all_begun

    async def close(self) -> None:
        Closing.begun += 1
        first = Closing.begun == 1
        if Closing.begun == self._number:
            self._all_begun.set()
        await self._all_begun.wait()
        if first:
            raise RuntimeError("no such container")


@pytest.mark.parametrize("how", ["stopped", "expired", "owner gone"])
async def test_sessions_are_closed_side_by_side_and_one_that_fails_stops_no_other(how, monkeypatch):
    now, event = [0.0], asyncio.Event()
    monkeypatch.setattr(Closing, "begun", 0)
    sessions = Sessions(lambda: Closing(3, event), cap=8, ttl_s=1.0, clock=lambda: now[0])
    for i in range(3):
        await sessions.open(ResetRequest(session_id=f"actor.{i}"))
    now[0] = 2.0
    async with asyncio.timeout(30):  # one after another would wait for ever
        if how == "owner gone":
            assert await sessions.close_owned("actor") == 3 and await sessions.close_owned("acto") == 0
        else:
            await (sessions.close_all() if how == "stopped" else sessions.expire())
    assert len(sessions) == 0 and Closing.begun == 3
