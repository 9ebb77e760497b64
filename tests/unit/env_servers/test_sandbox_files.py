"""What a call brings, fetches and leaves behind. The runner is that of every sandbox."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from env_servers.python_tir.isolation import bwrap
from env_servers.python_tir.isolation.bare import BareSandbox
from env_servers.python_tir.isolation.bwrap import BwrapSandbox
from env_servers.python_tir.limits import Limits
from env_servers.python_tir.sandbox import Execution


@pytest.mark.parametrize("name", ["main.py", "main.py/part", "./main.py", ".stdin", ".stdin/part"])
async def test_a_file_may_have_the_name_of_what_the_sandbox_writes(name):
    code = f"import sys\nprint(open({name!r}).read(), sys.stdin.read(), end='')"
    execution = await BareSandbox().run(code, stdin=b"input", files={name: b"content"})
    assert execution.stdout == b"content input"


async def test_a_fetched_file_may_be_larger_than_half_of_the_memory():
    size = 20 << 20
    sandbox = BareSandbox(replace(Limits(), memory_bytes=48 << 20))
    execution = await sandbox.run(f"open('f', 'wb').truncate({size})\nopen('g', 'w').write('x')", fetch=["f", "g"])
    assert execution.return_code == 0 and execution.files == {"f": bytes(size), "g": b"x"}


async def test_a_file_that_cannot_be_copied_as_a_whole_is_left_out_and_later_ones_arrive():
    """All copies are one file, which may be as large as one file of the call."""
    sandbox = BareSandbox(replace(Limits(), file_bytes=12 << 20))
    code = "for name, size in ('f', 10 << 20), ('g', 10 << 20), ('h', 1):\n    open(name, 'wb').truncate(size)"
    execution = await sandbox.run(code, fetch=["f", "g", "h"])
    assert execution.return_code == 0 and execution.files == {"f": bytes(10 << 20), "h": bytes(1)}


async def test_directories_of_any_depth_are_removed_and_no_fault_of_the_sandbox(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = "import os\nfor _ in range(3000):\n    os.mkdir('d')\n    os.chdir('d')\nprint('made')"
    try:
        assert (await BareSandbox().run(code)).stdout == b"made\n"
        assert not list(tmp_path.iterdir())
    finally:
        subprocess.run(["rm", "-rf", tmp_path], check=True)  # pytest could not, and every later run would fail by it


async def test_a_process_in_the_background_ends_with_its_call():
    code = "import subprocess\nprint(subprocess.Popen(['sleep', '600']).pid)"
    pid = int((await BareSandbox().run(code)).stdout)
    async with asyncio.timeout(60):
        while (stat := Path(f"/proc/{pid}/stat")).exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
            await asyncio.sleep(0.01)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's server has other users")
async def test_each_of_many_calls_at_once_is_a_user_of_its_own(monkeypatch):
    users = set()
    all_run = asyncio.Event()

    async def run_job(argv, limits, snippet, **options):
        users.add(next(word for word in argv(0, 0) if word.startswith("--reuid=")))
        if len(users) == 200:
            all_run.set()
        await all_run.wait()
        return Execution(b"", b"", 0, 0.0)

    monkeypatch.setattr(bwrap, "run_job", run_job)
    sandbox = BwrapSandbox()
    async with asyncio.timeout(60):
        await asyncio.gather(*(sandbox.run("") for _ in range(200)))
    assert len(users) == 200
