"""Code that the machine had no core for is a fault of the machine, and code that takes its own cores away is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager

import pytest

from env_servers.python_tir.isolation.bwrap import BwrapSandbox
from env_servers.python_tir.isolation.seccomp import filter_program
from env_servers.python_tir.limits import Limits
from env_servers.python_tir.sandbox import NoCore
from env_servers.python_tir.warm.sandbox import WarmSandbox

pytestmark = [
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
    pytest.mark.slow,
]
LIMITS = Limits(code_timeout_s=3.0)
CORE = max(os.sched_getaffinity(0))
ON_ONE_CORE = f"import os\nos.sched_setaffinity(0, {{{CORE}}})\n"
SPIN = "while True: pass"


@pytest.fixture(params=["fresh", "warm"])
async def sandbox(request):
    made = (
        BwrapSandbox(LIMITS, seccomp=filter_program())
        if request.param == "fresh"
        else WarmSandbox(LIMITS, slots=1, seccomp=filter_program())
    )
    await made.run("")
    yield made
    await made.close()


@contextmanager
def hogs(count):
    # Each has a session of its own: the kernel may share a core out by session first.
    spin = [sys.executable, "-c", ON_ONE_CORE + SPIN]
    running = [subprocess.Popen(spin, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for hog in running:
            hog.kill()
            hog.wait()


async def test_code_that_waits_for_a_core_for_most_of_its_time_is_no_time_limit(sandbox):
    with hogs(15), pytest.raises(NoCore):
        await sandbox.run(ON_ONE_CORE + SPIN)


@pytest.mark.parametrize("lower", ["os.nice(9)", "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))"])
async def test_code_that_takes_a_low_priority_meets_its_time_limit(sandbox, lower):
    with hogs(1):
        assert (await sandbox.run(f"{ON_ONE_CORE}{lower}\n{SPIN}")).killed == "time_limit"


async def test_code_whose_processes_take_the_core_from_each_other_meets_its_time_limit(sandbox):
    assert (await sandbox.run(f"{ON_ONE_CORE}for _ in range(3): os.fork()\n{SPIN}")).killed == "time_limit"
