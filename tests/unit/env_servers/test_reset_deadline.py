"""The reply to a reset that misses its deadline names the deadline, and one whose session is closed has a reply too."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from env_servers.env import Env
from env_servers.serving import ServingConfig, create_env_app


class Slow(Env):
    """An environment whose reset raises its own TimeoutError, or never returns."""

    def __init__(self, failure, begun=None):
        self._failure = failure
        self._begun = begun or asyncio.Event()

    async def reset(self, task, seed):
        self._begun.set()
        if self._failure == "own error":
            raise TimeoutError("the licence server does not answer")
        await asyncio.Event().wait()
        raise AssertionError("nobody sets the event")


@pytest.mark.parametrize(
    ("failure", "names_deadline", "names_error"), [("deadline", True, False), ("own error", False, True)]
)
async def test_a_late_reset_reads_differently_from_a_failed_one(failure, names_deadline, names_error):
    timeout_s = 0.05 if failure == "deadline" else 600.0
    app = create_env_app(lambda: Slow(failure), ServingConfig(env="slow", action="text", reset_timeout_s=timeout_s))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://env") as http:
        reply = await http.post("/reset", json={"session_id": "s"})
        detail = reply.json()["detail"]
        assert reply.status_code == 500 and detail.startswith("env_error: ")
        assert ("0.05 s" in detail) == names_deadline
        assert ("TimeoutError: the licence server does not answer" in detail) == names_error
        assert (await http.get("/health")).json()["sessions"] == 0


async def test_a_reset_whose_session_is_closed_is_answered():
    begun = asyncio.Event()
    app = create_env_app(
        lambda: Slow("deadline", begun), ServingConfig(env="slow", action="text", reset_timeout_s=600.0)
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://env") as http:
        reset = asyncio.create_task(http.post("/reset", json={"session_id": "s"}))
        async with asyncio.timeout(60):
            await begun.wait()
            assert (await http.delete("/session/s")).json()["closed"]
            assert (await reset).status_code == 404
