"""Learning rate as a function of the update."""

from __future__ import annotations

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.config.openrlhf_flags import SCHEDULERS
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


def test_inverse_sqrt_is_half_the_peak_behind_four_times_its_warm_up():
    lr = lr_schedule("inverse_sqrt", peak=2.0, total=5, warmup=4, min_ratio=0.9)
    assert [lr(u) for u in (0, 4, 16)] == pytest.approx([0.4, 2.0, 1.0])
    assert lr_schedule("inverse_sqrt", peak=2.0, total=5)(30_000) == 1.0


@pytest.mark.parametrize(
    "name",
    [
        "linear",
        "cosine",
        "cosine_with_restarts",
        "polynomial",
        "inverse_sqrt",
        "cosine_with_min_lr",
        "constant_with_warmup",
    ],
)
def test_behind_the_warm_up_a_schedule_of_transformers_is_the_one_that_its_name_stands_for(name):
    """Ours is at the floor in the last update, transformers' one behind it; a warm-up of theirs begins at 0."""
    torch, optimization = pytest.importorskip("torch"), pytest.importorskip("transformers.optimization")
    warmup, total = 3, 12
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    options = {"min_lr_rate": 0.1} if name == "cosine_with_min_lr" else {}
    theirs = optimization.get_scheduler(name, optimizer, warmup, total - 1, options).lr_lambdas[0]
    floor = options.get("min_lr_rate", 0.0)
    ours = lr_schedule(SCHEDULERS.get(name, name), peak=1.0, total=total, warmup=warmup, min_ratio=floor)
    assert [ours(u) for u in range(warmup, total)] == pytest.approx([theirs(u) for u in range(warmup, total)], abs=1e-6)


def test_a_run_takes_its_shape_from_the_configuration():
    cfg = Config(
        actor={"learning_rate": 1.0, "lr_scheduler": "linear", "lr_warmup_ratio": 0.1, "min_lr_ratio": 0.0},
        train={"max_steps": 10},
    )
    assert [rl_schedule(cfg)(u) for u in (0, 1, 9)] == pytest.approx([0.5, 1.0, 0.0])
