"""Which trajectories of a group are used: by hand, and by measurement that length plays no part."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from openrlhf_tir.episodes.sample_selection import select, will_be_filtered
from openrlhf_tir.errors import EnvError
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.types import Completion, GroupKey, RewardParts, Task, Trajectory, Verdict
from tests.unit.episodes.test_group_runner import KEY, Envs, IndexEngine, runner

IDS = np.zeros(1, np.int32)


def ended(text):
    """v valid, c correct, w wrong, f failed, d late, - running."""
    kinds = {
        "v": {},
        "c": {"parts": {"correct": 1.0}},
        "w": {"parts": {"correct": 0.0}},
        "f": {"failed": "env_error"},
        "d": {"failed": "straggler"},
    }
    return [None if k == "-" else Trajectory(i, IDS, **kinds[k]) for i, k in enumerate(text)]


@pytest.mark.parametrize(
    ("states", "used", "settled"),
    [
        ("vvv|", [0, 1, 2], True),
        ("vvv|vv", [0, 1, 2], True),
        ("-vv|vv", [], False),
        ("v-v|vv", [0], False),
        ("vfv|v-", [0, 2, 3], True),
        ("vfv|-v", [0, 2], False),
        ("vff|vf", [0, 3], True),
        ("vdv|vv", [0, 2], True),
    ],
)
def test_the_earliest_dispatched_valid_ones_are_used(states, used, settled):
    selection = select(ended(states.replace("|", "")), states.index("|"))
    assert [t.index for t in selection.members if t.failed is None] == used and selection.is_final == settled


@pytest.mark.parametrize(
    ("states", "accuracy_range", "sure"),
    [
        ("wwww----", (0.5, 1.0), True),  # at best 4 of 8
        ("wwwc----", (0.5, 1.0), False),
        ("wwwf----", (0.5, 1.0), False),  # the failed one's place may go to a correct one
        ("cccc----", (0.0, 0.5), True),  # at worst 4 of 8
        ("cccc----", (0.0, 1.0), False),
        ("wwwwwww-", (0.0, 1.0), False),
        ("cc------", (0.0, 0.2), False),  # 2 of 8 at worst is above 0.2, but min_valid is 3
    ],
)
def test_a_group_is_hopeless_only_when_every_ending_is_dropped(states, accuracy_range, sure):
    assert will_be_filtered(ended(states), 8, 3, accuracy_range) == sure


async def test_a_fault_takes_a_trajectory_from_the_reserve():
    meta, group = await runner(envs=Envs([1]), n_samples_per_prompt=3, oversample=2).run(KEY, Task("Q", "x"))
    assert meta.index == [0, 2, 3] and meta.failures == {"env_error": 1} and len(group.trajectories) == 4
    assert meta.stats["length_used"] == (1 + 3 + 4) / 3 and meta.stats["length_replacements"] == 4


async def test_the_reserve_that_finishes_first_is_not_used_and_is_given_up():
    """Samples 0..2 take 0.1 s, the two in reserve none: the first finished would have had lengths 4, 5 and more."""
    engine = IndexEngine([0.1, 0.1, 0.1, 0, 600])
    meta, _ = await runner(engine=engine, n_samples_per_prompt=3, oversample=2).run(KEY, Task("Q", "x"))
    assert meta.index == [0, 1, 2] and meta.failures == {} and engine.given_up == {4}


async def test_a_straggler_keeps_its_place_empty():
    meta, _ = await runner(
        engine=IndexEngine([0, 60, 0, 0]), n_samples_per_prompt=3, oversample=1, straggler_s=0.1
    ).run(KEY, Task("Q", "x"))
    assert meta.index == [0, 2] and meta.failures == {"straggler": 1}


async def test_a_group_waits_beyond_the_straggler_limit_until_enough_are_valid():
    engine = IndexEngine([0, 0.3, 600, 600])
    meta, _ = await runner(engine=engine, straggler_s=0.1, group_deadline_s=300).run(KEY, Task("Q", "x"))
    assert meta.index == [0, 1] and meta.failures == {"straggler": 2} and engine.given_up == {2, 3}


async def test_a_hopeless_group_is_dropped_without_its_last_samples_only_when_asked_for():
    """Lengths 1 and 2 are wrong, 3 and 4 right: with a lower bound of 0.5 two wrong of four are enough."""
    slow = IndexEngine([0, 0, 600, 600])
    on = runner(engine=slow, early_stop=True, group_deadline_s=300, judge=lambda g: Verdict(False, "accuracy_low"))
    on.cfg.filter.accuracy_range = (0.5, 1.0)
    meta, _ = await on.run(KEY, Task("Q", "x"))
    assert (
        meta.failures == {"early_stop": 2}
        and meta.verdict.reason == "accuracy_low"
        and meta.failed is None
        and slow.given_up == {2, 3}
    )
    on.cfg.rollout.early_stop, on.cfg.rollout.group_deadline_s = False, 0.5
    assert (await on.run(KEY, Task("Q", "x")))[0].failures == {"deadline": 2}


class FaultyLengths:
    """Responses of exponential length (mean 100), as many seconds as tokens; one session in five is broken."""

    def __init__(self):
        self.rng = random.Random(0)

    async def generate(self, token_ids, sampling, *, request_id):
        n = 1 + int(self.rng.expovariate(1 / 100))
        await asyncio.sleep(n)
        if self.rng.random() < 0.2:
            raise EnvError("broken")
        return Completion(
            np.full(n, 97, np.int32), np.zeros(n, np.float32), np.zeros(n, np.int32), "a", "stop", "</answer>"
        )


class AllRight:
    async def score(self, trajectory, task):
        return RewardParts(1.0, True, {})


def test_lengths_of_what_is_used_are_unbiased_and_those_of_the_first_finished_are_not():
    """300 groups of 8 + 4 at a mean of 100.5 tokens; standard error 1 for 2,400 responses, 5 for their replacements."""

    async def main():
        r = runner(
            engine=FaultyLengths(),
            rewards=AllRight(),
            n_samples_per_prompt=8,
            oversample=4,
            drift_check=0,
            max_new_tokens=5000,
        )
        return [meta for meta, _ in await asyncio.gather(*[r.run(GroupKey(0, i), Task("Q", "x")) for i in range(300)])]

    metas = run(main())
    mean = {
        name: np.mean([m.stats[name] for m in metas if name in m.stats])
        for name in ("length_used", "length_replacements", "length_first_done")
    }
    assert abs(mean["length_used"] - 100.5) < 5
    assert abs(mean["length_replacements"] - 100.5) < 20
    assert mean["length_first_done"] < 80
