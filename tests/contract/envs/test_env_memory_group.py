"""What all processes of a snippet hold together: bounded by the kernel where control groups can be had, else said."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from env_servers.python_tir.isolation.control_group import NONE, SLACK_BYTES
from env_servers.python_tir.isolation.tree import descendants

from ..env_process import Http, env_server

pytestmark = [
    pytest.mark.extended,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
]
BURST = """
import os, time
for i in range(8):
    if os.fork() == 0:
        b = bytearray(120 << 20)
        b[::4096] = b"x" * len(b[::4096])
        time.sleep(60)
time.sleep(60)
"""


def groups_below(pid: int) -> set[str]:
    """Paths of slots' groups that the server's processes are in, below their hierarchy."""
    found = set()
    for child in descendants(pid):
        for line in Path(f"/proc/{child}/cgroup").read_text().splitlines():
            if "/tir-slot-" in line:
                found.add(line.split(":", 2)[2])
    return found


def peaks(groups: set[str]) -> list[int]:
    names = [
        f"/sys/fs/cgroup{base}{group}/{peak}"
        for group in groups
        for base, peak in (("/memory", "memory.max_usage_in_bytes"), ("", "memory.peak"))
    ]
    return [int(path.read_text()) for path in map(Path, names) if path.exists()]


async def test_a_burst_of_processes_never_exceeds_the_memory_limit_together(tmp_path):
    log = tmp_path / "log"
    with env_server(
        "env_servers.python_tir", tmp_path, "--memory-mib", "256", "--workers", "1", "--code-timeout", "60",
        "--no-languages", log=log,
    ) as (url, server):  # fmt: skip
        async with Http(url) as http:
            before = await http.step(await http.open(), 0, "print(1)")
            groups = groups_below(server.pid)
            if not groups:
                assert NONE in log.read_text()
                pytest.skip("no control group can be had here")
            body = (await http.step(await http.open(), 0, BURST))[1]
            assert (body["outcome"], body["signals"]["error_type"]) == ("model_error", "memory")
            assert max(peaks(groups)) <= (256 << 20) + SLACK_BYTES
            assert (
                (await http.step(await http.open(), 0, "print(1)"))[1]["observation"]
                == before[1]["observation"]
                == "1\n"
            )
    assert not any(list(Path("/sys/fs/cgroup").glob(f"memory{group}")) for group in groups)


@pytest.mark.slow
async def test_a_fresh_sandbox_has_a_group_for_each_call(tmp_path):
    log = tmp_path / "log"
    with env_server(
        "env_servers.python_tir", tmp_path, "--memory-mib", "256", "--no-warm", "--code-timeout", "60",
        "--no-languages", log=log,
    ) as (url, server):  # fmt: skip
        async with Http(url) as http:
            if NONE in log.read_text():
                pytest.skip("no control group can be had here")
            sleeping = asyncio.create_task(http.step(await http.open(), 0, "import time; time.sleep(5)"))
            while not (groups := groups_below(server.pid)) and not sleeping.done():
                await asyncio.sleep(0.02)
            assert len(groups) == 1
            await sleeping
            assert not groups_below(server.pid)
            body = (await http.step(await http.open(), 0, BURST))[1]
            assert (body["outcome"], body["signals"]["error_type"]) == ("model_error", "memory")
