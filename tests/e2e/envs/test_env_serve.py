"""An environment under Ray Serve: sessions stay where they were opened, and a copy that dies costs its own only."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack, suppress

import psutil
import pytest

from openrlhf_tir.cluster.env_serve.__main__ import needs_older_protobuf
from openrlhf_tir.errors import EnvError, EnvLost
from openrlhf_tir.rollout.environment_client.client import EnvClient, EnvLimits
from tests.conftest import REPO

pytestmark = [pytest.mark.slow, pytest.mark.long]
PORT = 8137
UP_S = 400.0
"""Ray, Serve's own two actors and two copies, on a machine that does other things."""


def holder_of(url: str) -> psutil.Process:
    """The server process that was told that it is `url`."""
    return next(
        p
        for p in psutil.process_iter(["cmdline"])
        if p.info["cmdline"] and "--server-url" in p.info["cmdline"] and url in p.info["cmdline"]
    )


async def opened_at(client: EnvClient) -> set[str]:
    """Where a new session is, after one step; nowhere while the copy to which it was sent is being noticed as gone."""
    try:
        async with client.session("echo", {}) as new:
            await new.reset()
            assert (await new.step("well", step_id=0)).observation == "well"
            return {new.server}
    except EnvError as e:
        if "HTTP 5" not in str(e):
            raise
        return set()


async def test_sessions_stay_in_their_copy_and_one_that_dies_costs_its_own_only():
    if needs_older_protobuf():
        pytest.skip("this version of Ray Serve does not work with this protobuf: pip install 'protobuf<7'")
    script = [
        "bash", str(REPO / "train_scripts/start_env_servers.sh"), "--ray", "-n", "2", "-e", "echo", "-p", str(PORT),
        "--", "--max-sessions", "64",
    ]  # fmt: skip
    environment = {**os.environ, "TIR_VENV": sys.prefix, "RAY_ADDRESS": ""}
    started = await asyncio.create_subprocess_exec(*script, stdout=subprocess.PIPE, env=environment)
    try:
        url = (await asyncio.wait_for(started.stdout.readline(), UP_S)).decode().strip()
        assert url == f"http://127.0.0.1:{PORT}/echo"
        async with (
            EnvClient(
                {"echo": [url]}, limits={"": EnvLimits(step_timeout_s=8.0)}, max_retries=1, backoff_s=0.01
            ) as client,
            AsyncExitStack() as stack,
        ):
            sessions = [await stack.enter_async_context(client.session("echo", {})) for _ in range(12)]
            for s in sessions:
                await s.reset()
            servers = {s.server for s in sessions}
            assert len(servers) == 2 and url not in servers
            said = [await s.step(f"{i} {k}", step_id=k) for k in range(3) for i, s in enumerate(sessions)]
            assert [reply.observation for reply in said] == [f"{i} {k}" for k in range(3) for i in range(12)]

            lost = sessions[0].server
            holder_of(lost).kill()
            after = await asyncio.gather(*[s.step("after", step_id=3) for s in sessions], return_exceptions=True)
            for s, reply in zip(sessions, after, strict=True):
                assert isinstance(reply, EnvLost) if s.server == lost else reply.observation == "after", (
                    s.server,
                    reply,
                )
            opened: set[str] = set()
            async with asyncio.timeout(UP_S):
                while not opened - servers:  # Serve tells nobody when a copy has been replaced
                    opened |= await opened_at(client)
                    await asyncio.sleep(0.2)
            assert lost not in opened, "new sessions come to copies that live"
    finally:
        with suppress(ProcessLookupError):
            started.send_signal(signal.SIGTERM)
        await asyncio.wait_for(started.wait(), UP_S)
    assert not [
        p
        for p in psutil.process_iter(["cmdline"])
        if p.info["cmdline"] and "--server-url" in p.info["cmdline"] and lost in p.info["cmdline"]
    ]
