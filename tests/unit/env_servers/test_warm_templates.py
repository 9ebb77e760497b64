"""Two warm interpreters, one with numpy and sympy and one without: who gets which, neither costs the other."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal

import pytest

from env_servers.python_tir.isolation.seccomp import filter_program
from env_servers.python_tir.isolation.tree import descendants
from env_servers.python_tir.limits import Limits
from env_servers.python_tir.sandbox import SandboxError
from env_servers.python_tir.warm.sandbox import WarmSandbox
from env_servers.python_tir.warm.template import Template

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
PRELOADED = "import sys; print(sorted({'num' + 'py', 'sym' + 'py', 'mpm' + 'ath'} & set(sys.modules)))"
ALL, NONE = b"['mpmath', 'numpy', 'sympy']\n", b"[]\n"


@pytest.fixture(scope="module")
def warm():
    sandbox = WarmSandbox(Limits(code_timeout_s=600.0), slots=2, seccomp=filter_program())
    yield sandbox
    asyncio.run(sandbox.close())


HELD = "import os, time; os.mkdir('/tmp/{name}')\nwhile os.path.exists('/tmp/{name}'): time.sleep(0.01)\n"
"""A call that runs until the test removes its directory."""


def held(warm: WarmSandbox) -> dict[str, int]:
    """The names of the calls that are HELD, with a descriptor of the directory in which each has its own."""
    directories = [s.directories[0] for template in (warm._light, warm._full) for s in template.slots if s and s.usable]
    return {name: fd for fd in directories for name in os.listdir(fd) if name.startswith("held")}


async def until_held(warm: WarmSandbox, count: int) -> dict[str, int]:
    while len(running := held(warm)) < count:
        await asyncio.sleep(0.01)
    return running


async def until_running(template: Template) -> None:
    while not any(slot and list(descendants(slot.pid)) for slot in template.slots):
        await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_only_code_that_names_a_library_finds_it_preloaded(warm):
    assert (await warm.run(PRELOADED)).stdout == NONE
    for name in ("numpy", "sympy", "mpmath"):
        assert (await warm.run(f"{PRELOADED}\nimport {name}")).stdout == ALL


async def test_a_library_named_in_a_file_is_preloaded_too(warm):
    assert (await warm.run("import helper", files={"helper.py": f"{PRELOADED}\nimport sympy".encode()})).stdout == ALL
    assert (await warm.run("import helper", files={"helper.py": PRELOADED.encode()})).stdout == NONE


@pytest.mark.slow
async def test_a_library_that_is_not_named_is_imported_from_disk(warm):
    assert (
        await warm.run("n = __import__('num' + 'py'); print(n.arange(4).sum(), n.ones(2) @ n.ones(2))")
    ).stdout == b"6 2.0\n"
    assert (await warm.run("s = __import__('sym' + 'py'); print(s.factorint(360))")).stdout == b"{2: 3, 3: 2, 5: 1}\n"


async def test_a_killed_light_container_is_replaced_and_fails_its_own_calls_only(warm):
    await asyncio.gather(warm.run(""), warm.run("# numpy"))
    light, full = warm._light.container, warm._full.container
    on_full = asyncio.create_task(warm.run(HELD.format(name="held") + "print('done')  # numpy"))
    on_light = asyncio.create_task(warm.run("import time; time.sleep(60)"))
    await until_running(warm._light)
    await until_held(warm, 1)
    signal.pidfd_send_signal(light._master, signal.SIGKILL)
    with pytest.raises(SandboxError):
        await on_light
    assert (await warm.run(PRELOADED)).stdout == NONE
    for name, fd in held(warm).items():
        os.rmdir(name, dir_fd=fd)
    assert (await on_full).stdout == b"done\n"
    assert warm._light.container is not light and warm._light.container.alive
    assert warm._full.container is full


@pytest.mark.slow
async def test_a_container_killed_between_calls_fails_no_call(warm):
    """Its slots die after it, one by one: the next call must not get one that is about to."""
    for _ in range(3):
        await asyncio.gather(*(warm.run("import time; time.sleep(0.1)") for _ in range(2)))  # both places
        container = warm._light.container
        signal.pidfd_send_signal(container._master, signal.SIGKILL)
        while container.alive:
            await asyncio.sleep(0)
        for execution in await asyncio.gather(warm.run("print(1)"), warm.run("print(1)")):
            assert execution.stdout == b"1\n"


async def test_no_descriptor_of_a_replaced_container_is_left(warm):
    await warm.run("")
    before = len(os.listdir("/proc/self/fd"))
    warm._light.container.kill()
    assert (await warm.run("print(1)")).stdout == b"1\n"
    assert len(os.listdir("/proc/self/fd")) == before


async def test_light_and_full_containers_share_the_slots_in_order_of_arrival(warm):
    comments = ("", "", "# numpy", "# numpy", "", "# numpy")
    calls = [asyncio.create_task(warm.run(HELD.format(name=f"held{n}") + c)) for n, c in enumerate(comments)]
    for pair in (["held0", "held1"], ["held2", "held3"], ["held4", "held5"]):
        running = await until_held(warm, 2)
        assert sorted(running) == pair
        for name, fd in running.items():
            os.rmdir(name, dir_fd=fd)
    assert [e.return_code for e in await asyncio.gather(*calls)] == [0] * 6


@pytest.mark.slow
async def test_extra_modules_are_preloaded_in_the_full_container_and_closing_ends_both():
    """One of the modules is missing."""
    sandbox = WarmSandbox(slots=1, imports=("wave", "no_such_module"))
    loaded = "import sys; print('wave' in sys.modules)"
    try:
        assert (await sandbox.run(f"{loaded}  # numpy")).stdout == b"True\n"
        assert (await sandbox.run(loaded)).stdout == b"False\n"
        pids = [
            pid for template in (sandbox._light, sandbox._full) for pid in descendants(template.container._process.pid)
        ]
        assert len(pids) >= 4
    finally:
        await sandbox.close()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
