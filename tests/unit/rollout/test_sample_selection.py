"""Which trajectories of a group are used: by hand, and by measurement that length plays no part."""

from __future__ import annotations

import numpy as np
import pytest

from openrlhf_tir.rollout.sample_selection import will_be_filtered
from openrlhf_tir.types import Task, Trajectory, Verdict
from tests.unit.rollout.test_group_runner import KEY, IndexEngine, runner

IDS = np.zeros(1, np.int32)


def ended(text):
    """v valid, c correct, w wrong, f failed, d late, - running."""
    kinds = {
        "v": {},
        "c": {"parts": {"correct": 1.0}},
        "w": {"parts": {"correct": 0.0}},
        "f": {"failed": "env_error"},
        "d": {"failed": "deadline"},
    }
    return [None if k == "-" else Trajectory(i, IDS, **kinds[k]) for i, k in enumerate(text)]


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
    assert will_be_filtered(ended(states), 3, accuracy_range) == sure


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
