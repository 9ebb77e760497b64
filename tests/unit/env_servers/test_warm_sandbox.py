"""WarmSandbox as an object: what it leaves behind, what it replaces, and whose fault a failure is."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal

import pytest

from env_servers.python_tir.limits import Limits
from env_servers.python_tir.sandbox import SandboxError
from env_servers.python_tir.seccomp import filter_program
from env_servers.python_tir.selftest import proved
from env_servers.python_tir.tree import descendants
from env_servers.python_tir.warm.sandbox import WarmSandbox

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


@pytest.fixture(scope="module")
def warm():
    sandbox = WarmSandbox(Limits(code_timeout_s=10.0), slots=1, seccomp=filter_program())
    yield sandbox
    asyncio.run(sandbox.close())


async def test_it_passes_the_self_test_and_serves_other_event_loops(warm):
    await proved(warm)
    loops = [await asyncio.to_thread(lambda: asyncio.run(warm.run("print(1)"))) for _ in range(2)]
    assert [e.stdout for e in loops] == [b"1\n", b"1\n"]


async def test_a_cancelled_call_ends_before_the_next_begins(warm):
    await warm.run("")
    slot = warm._light.slots[0]
    call = asyncio.create_task(warm.run("import time; time.sleep(60)"))
    while not list(descendants(slot.pid)):
        await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert list(descendants(slot.pid)) == []
    assert (await warm.run("print(1)")).stdout == b"1\n"
    assert warm._light.slots[0] is slot  # it was asked to end the call, not killed


async def test_a_call_cancelled_twice_does_not_spoil_its_successor(warm):
    """A missed deadline and then the close of its session, or a task group: whoever cancels may do so again while the call is being ended."""
    for _ in range(10):
        call = asyncio.create_task(warm.run("import time; time.sleep(60)"))
        await asyncio.sleep(0.05)
        for _ in range(3):
            call.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await call
        after = await warm.run("print(1)")
        assert (after.stdout, after.return_code, after.killed) == (b"1\n", 0, None)


async def test_a_call_that_waits_for_a_slot_can_be_cancelled(warm):
    running = asyncio.create_task(warm.run("import time; time.sleep(0.3); print('done')"))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(warm.run("print('never')"))
    await asyncio.sleep(0.05)
    waiting.cancel()
    assert (await running).stdout == b"done\n"
    assert (await warm.run("print(2)")).stdout == b"2\n"


async def test_a_dead_slot_is_the_sandboxs_fault_and_is_replaced(warm):
    await warm.run("")
    call = asyncio.create_task(warm.run("import time; time.sleep(60)"))
    while not list(descendants(warm._light.slots[0].pid)):
        await asyncio.sleep(0.01)
    os.kill(warm._light.slots[0].pid, signal.SIGKILL)
    with pytest.raises(SandboxError, match="ended"):
        await call
    assert (await warm.run("print(1)")).stdout == b"1\n"


async def test_a_slot_that_hangs_past_the_deadline_costs_the_model_a_time_limit_and_is_replaced(warm, monkeypatch):
    monkeypatch.setattr("env_servers.python_tir.warm.call.ANSWER_S", 0.2)
    await warm.run("")
    slot = warm._light.slots[0]
    os.kill(slot.pid, signal.SIGSTOP)
    e = await warm.run("print(1)", timeout_s=0.1)
    assert e.killed == "time_limit"
    assert (await warm.run("print(2)")).stdout == b"2\n"
    assert warm._light.slots[0] is not slot


async def test_files_that_cannot_be_wiped_cost_the_slot_and_nothing_else(warm):
    await warm.run("")
    slot = warm._light.slots[0]
    await warm.run("import os\nfor i in range(1500):\n    os.mkdir('d'); os.chdir('d')")
    assert (await warm.run("import os; print(os.listdir('/tmp'))")).stdout == b"['main.py']\n"
    assert warm._light.slots[0] is not slot


async def test_random_numbers_differ_from_call_to_call(warm):
    code = "import random, numpy, sympy.core.random as s; print(random.random(), numpy.random.rand(), s.random())"
    first, second = (await warm.run(code)).stdout.split(), (await warm.run(code)).stdout.split()
    assert all(a != b for a, b in zip(first, second, strict=True))


async def test_no_descriptor_and_no_child_is_left_after_many_calls(warm):
    await warm.run("print(1)")
    before = len(os.listdir("/proc/self/fd"))
    for code in ["print(1)", "1/0", "while True: print('y' * 9999)", "import os; os.system('setsid sleep 99 &')"] * 3:
        await warm.run(code)
    assert len(os.listdir("/proc/self/fd")) == before
    assert list(descendants(warm._light.slots[0].pid)) == []
