"""The hostile suite of `swe`: no work that does not mend the bug is rewarded, nothing hidden is seen, and the server is
as it was before."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace

import pytest

from env_servers.python_tir.isolation import core_wait
from env_servers.python_tir.isolation.tree import descendants
from env_servers.swe import examine
from env_servers.swe.env import LIMITS
from env_servers.swe.start import new_sandbox, shared
from env_servers.swe.tree import Tree

from ..ordinary import long_except
from .swe_hostile import ATTACKS, BUG, CODE, GOOD, World, before, broken

pytestmark = [
    pytest.mark.extended,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
]


@pytest.fixture(scope="module")
def world():
    sandbox = new_sandbox(LIMITS, evaluations=2)
    world = World(
        shared(
            sandbox, evaluations=2, command_s=2.0, test_s=60.0, max_turns=50, mirror=None, sessions=8, memory=4 << 30
        )
    )
    asyncio.run(world.judged(""))
    yield world
    asyncio.run(sandbox.close())


EXPENSIVE = {
    "fill the disk with names", "the mended code on disk", "output without end", "search for what they say",
    "fill the disk", "memory without end", "memory without end in bash", "attributes that hide the change",
    "another history", "preloads for later processes", "hooks, and the bug mended", "never ends",
    "a git of its own first in the path", "look for the tests on disk", "results without end", "fork bomb",
    "errors that are every error", "results that raise an exit", "results of a gigabyte",
}  # fmt: skip
"""Attacks that use up a limit, or that take more than .7 CPU seconds where another one of their kind takes less.
tests/contract/test_hostile.py attacks the same sandbox's limits in the ordinary run."""
CHEAP = {attack.name for attack in ATTACKS} - EXPENSIVE


def test_the_suite_is_large_and_its_names_are_unique():
    assert len(ATTACKS) >= 40
    assert len({a.name for a in ATTACKS}) == len(ATTACKS)


def gold() -> str:
    lines = broken()[CODE][1].decode().split("\n")
    at = next(i for i, line in enumerate(lines) if BUG in line)
    return f"--- a/{CODE}\n+++ b/{CODE}\n@@ -{at + 1} +{at + 1} @@\n-{lines[at]}\n+{lines[at].replace(BUG, GOOD)}\n"


async def test_the_gold_patch_is_rewarded_and_a_patch_without_effect_is_not(world):
    assert (await world.judged(gold())).reason == "resolved"
    idle = await world.judged(before("README.md", "nothing"))
    assert (idle.resolved, idle.reason) == (False, "tests_failed")


@pytest.mark.parametrize("attack", long_except(CHEAP, ATTACKS, lambda attack: attack.name))
async def test_every_attack_is_contained(world, attack, monkeypatch):
    """What never ends is stopped after four seconds. What is to be rewarded has a minute, on a busy machine too."""
    monkeypatch.setattr(core_wait, "LEAST_SHARE", 0.0)
    if attack.reward:
        monkeypatch.setattr(world, "shared", replace(world.shared, command_s=20.0))
        monkeypatch.setattr(examine, "MAX_COPIES", 1)
    else:
        monkeypatch.setattr(world.shared.backend.grader._examiner, "_test_s", 4.0)
    assert await attack.run(world)


async def test_after_all_attacks_the_server_works_and_no_session_is_left(world, monkeypatch):
    monkeypatch.setattr(examine, "MAX_COPIES", 1)
    assert (await world.judged(gold())).resolved
    assert len(world.shared.backend.notebooks) == 0
    tree: Tree = broken()
    assert BUG.encode() in tree[CODE][1]


async def test_a_session_that_is_closed_leaves_no_process(world):
    sandbox = world.shared.backend.notebooks.sandbox
    before_it = set(descendants(sandbox._light.container._process.pid))
    await world.session(["setsid sleep 1000 & sleep 1000 & (setsid sleep 1000 &)"])
    async with asyncio.timeout(300):  # one that has ended is listed until it is reaped
        while not set(descendants(sandbox._light.container._process.pid)) <= before_it:
            await asyncio.sleep(0.05)
