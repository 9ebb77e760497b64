"""Rewards of a user that workers load by name. The module imports little, because each worker imports it anew."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from openrlhf_tir.types import RewardParts


def killed(trajectory, task, cfg):
    os.kill(os.getpid(), signal.SIGKILL)


def dies_once(trajectory, task, cfg):
    if not os.path.exists(task.label):
        open(task.label, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return RewardParts(0.5, False, {})


def half(trajectory, task, cfg):
    return 0.5


def of_group(group, context):
    return [0.25 for _ in group.valid]


def drops(group, options):
    return False, "dull"


def hangs_once(begun):
    if begun.exists():
        return "again"
    begun.touch()
    time.sleep(600)


def hangs(trajectory, task, cfg):
    time.sleep(60)


class SlowToLoad:
    """A call whose user code has not begun when its time is used up."""

    user_code = True

    def __call__(self):
        time.sleep(60)


def stop_myself():
    os.kill(os.getpid(), signal.SIGSTOP)


def burn(cpu_s):
    begun = time.process_time()
    while (used := time.process_time() - begun) < cpu_s:
        pass
    return used


async def awaits(trajectory, task, context):
    return RewardParts(float(await context.equal(trajectory.text, task.label)), True, {"calls": 1.0})


async def awaits_for_ever(trajectory, task, context):
    await asyncio.Event().wait()
