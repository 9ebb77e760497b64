"""Learning rate as a function of the update."""

from __future__ import annotations

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.learner.schedule import lr_schedule, rl_schedule


def test_warm_up_climbs_to_the_peak_and_the_first_update_moves():
    lr = lr_schedule("constant", peak=1.0, total=100, warmup=3)
    assert [lr(u) for u in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_linear_ends_on_the_floor_at_the_last_update():
    lr = lr_schedule("linear", peak=1.0, total=5, min_ratio=0.2)
    assert [lr(u) for u in range(6)] == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.2])


def test_cosine_is_halfway_down_in_the_middle():
    lr = lr_schedule("cosine", peak=2.0, total=5, min_ratio=0.5)
    assert [lr(0), lr(2), lr(4)] == pytest.approx([2.0, 1.5, 1.0])


def test_a_run_takes_its_shape_from_the_configuration():
    cfg = Config(actor={"learning_rate": 1.0, "lr_scheduler": "linear", "lr_warmup_ratio": 0.1, "min_lr_ratio": 0.0}, train={"max_steps": 10})
    assert [rl_schedule(cfg)(u) for u in (0, 1, 9)] == pytest.approx([0.5, 1.0, 0.0])


def test_an_unknown_shape_is_refused():
    with pytest.raises(ValueError, match="Unknown schedule 'step'"):
        lr_schedule("step", peak=1.0, total=1)
