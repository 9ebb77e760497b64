"""Deadlines and suspensions of this process: on a virtual clock, and with a real SIGSTOP."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.waiting.suspension import SuspensionMeter, awake_time, awake_timeout, wait_first

HOUR = 3600.0


def test_a_gap_between_two_looks_is_a_suspension_and_is_counted_once():
    now = [0.0]
    meter = SuspensionMeter(lambda: now[0])
    for step, expected in [(0.5, 0.0), (4.9, 0.0), (HOUR, HOUR - 0.5), (0.5, HOUR - 0.5), (10.5, HOUR + 9.5)]:
        now[0] += step
        assert meter.look() == pytest.approx(expected)


@pytest.mark.parametrize("noticed", [True, False], ids=["the thread saw it", "only the waiter can see it"])
def test_a_wait_is_extended_by_a_suspension(noticed):
    """Of a suspension that only the waiter can see, one part of eight of the deadline counts at most."""

    async def scenario():
        loop = asyncio.get_running_loop()
        loop.call_later(3.0, loop.suspend, HOUR, noticed)
        answer = loop.create_future()
        loop.call_later(9.0, answer.set_result, None)
        assert await wait_first({answer}, 8.0) == {answer}
        assert loop.time() == pytest.approx(HOUR + 9.0, abs=7)
        never = loop.create_future()
        began = awake_time()
        loop.call_later(3.0, loop.suspend, HOUR, True)
        assert await wait_first({never}, 8.0) == set()
        assert awake_time() - began == pytest.approx(8.0)

    run(scenario())


@pytest.mark.parametrize("noticed", [True, False])
def test_a_timeout_is_extended_by_a_suspension_and_is_a_timeout_all_the_same(noticed):
    async def scenario():
        loop = asyncio.get_running_loop()
        loop.call_later(3.0, loop.suspend, HOUR, noticed)
        async with awake_timeout(8.0):
            await asyncio.sleep(3.5)
        assert loop.time() >= HOUR
        began = loop.time()
        with pytest.raises(TimeoutError):
            async with awake_timeout(8.0):
                await asyncio.sleep(HOUR)
        assert loop.time() - began == pytest.approx(8.0)

    run(scenario())


PROGRAM = """
import asyncio, os, signal, time
from openrlhf_tir.waiting.suspension import awake_time, awake_timeout, suspended_s

async def main():
    suspended_s()
    began, awake = time.monotonic(), awake_time()
    asyncio.get_running_loop().call_later(1.0, os.kill, os.getpid(), signal.SIGSTOP)
    try:
        async with awake_timeout(4.0):
            await asyncio.sleep(1000)
    except TimeoutError:
        print(time.monotonic() - began, awake_time() - awake, flush=True)

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_process_that_is_stopped_by_a_signal_does_not_count_the_time(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    os.waitpid(process.pid, os.WUNTRACED)  # it stops itself, so that it waits however slow this machine is
    time.sleep(10.0)
    os.kill(process.pid, signal.SIGCONT)
    wall_s, awake_s = map(float, process.communicate(timeout=120)[0].split())
    assert wall_s - awake_s > 5.0 and awake_s >= 3.0, (wall_s, awake_s)


@pytest.mark.parametrize("begin", [0.1, 1234.567, 98765.4321])
def test_a_deadline_ends_although_its_parts_do_not_add_up_on_the_clock(begin):
    """60 s in eight parts, begun at a time to which a part cannot be added exactly: what is left is a rounding error,
    and waiting for that would never move the clock."""

    async def scenario():
        loop = asyncio.get_running_loop()
        await asyncio.sleep(begin)
        assert await wait_first({loop.create_future()}, 60.1) == set()
        with pytest.raises(TimeoutError):
            async with awake_timeout(60.1):
                await loop.create_future()

    run(scenario())
