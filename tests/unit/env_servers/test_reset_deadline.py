"""A reset that is not over in time says so, with its deadline."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from env_servers.env import Env
from env_servers.serving import ServingConfig, create_env_app


class Slow(Env):
    def __init__(self, how):
        self._how = how

    async def reset(self, task, seed):
        if self._how == "own":
            raise TimeoutError("the licence server does not answer")
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("late", "env_error: reset was not over within 0.05 s, and was given up."),
        ("own", "env_error: reset failed with TimeoutError: the licence server does not answer"),
    ],
)
async def test_a_reset_that_is_late_is_told_apart_from_one_that_failed(how, said):
    app = create_env_app(lambda: Slow(how), ServingConfig(env="slow", action="text", reset_timeout_s=0.05))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://env") as http:
        reply = await http.post("/reset", json={"session_id": "s"})
        assert (reply.status_code, reply.json()["detail"]) == (500, said)
        assert (await http.get("/health")).json()["sessions"] == 0
