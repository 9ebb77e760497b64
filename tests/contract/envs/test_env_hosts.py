"""Several servers behind one list, as on several hosts: when one is gone, its sessions fail as infrastructure and new
ones go to the others."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from openrlhf_tir.errors import EnvLost
from openrlhf_tir.rollout.environment_client.client import EnvClient, EnvLimits

from ..env_process import env_server

ECHO = "env_servers.echo"


@pytest.mark.slow
async def test_a_host_that_dies_loses_its_own_sessions_and_the_others_get_new_ones(tmp_path):
    with env_server(ECHO, tmp_path) as (first, process), env_server(ECHO, tmp_path) as (second, _):
        async with (
            EnvClient(
                {"echo": [first, second]}, limits={"": EnvLimits(step_timeout_s=10.0)}, max_retries=1, backoff_s=0.01
            ) as client,
            AsyncExitStack() as stack,
        ):
            sessions = [await stack.enter_async_context(client.session("echo", {})) for _ in range(6)]
            for s in sessions:
                await s.reset()
            assert sorted(s.server for s in sessions) == sorted([first, second] * 3), "they are spread evenly"
            process.kill()
            process.wait()
            replies = await asyncio.gather(*[s.step("a", step_id=0) for s in sessions], return_exceptions=True)
            for s, reply in zip(sessions, replies, strict=True):
                assert isinstance(reply, EnvLost) if s.server == first else reply.observation == "a", (s.server, reply)
            for _ in range(6):
                async with client.session("echo", {}) as new:
                    await new.reset()
                    assert new.server == second and (await new.step("b", step_id=0)).observation == "b"
            assert client.outcomes["echo", "env_lost"] == 3
