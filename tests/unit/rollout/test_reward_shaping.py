"""Shaping of rewards, by hand: budget 100 tokens, buffer 20."""

from __future__ import annotations

import numpy as np
import pytest

from openrlhf_tir.config import Config, Reward
from openrlhf_tir.rollout.reward_shaping import is_active, shaped_reward
from openrlhf_tir.types import Segment, Trajectory


def response(model: int, tool: int = 0, finish: str = "stop") -> Trajectory:
    written = Segment("model", np.zeros(model, np.int32), np.zeros(model, np.float32), np.zeros(model, np.int32))
    return Trajectory(0, np.zeros(3, np.int32), [written, Segment.of_env([0] * tool, "")], finish_reason=finish)


def of(reward: float, trajectory: Trajectory, **settings) -> float:
    return shaped_reward(reward, trajectory, Reward(**settings), max_tokens=100)


@pytest.mark.parametrize(("tokens", "expected"), [(80, 1.0), (81, 1 - 0.025), (90, 0.75), (100, 0.5), (130, 0.5)])
def test_an_overlong_response_loses_up_to_the_factor_within_the_buffer(tokens, expected):
    assert of(1.0, response(tokens), overlong_buffer_len=20, overlong_penalty_factor=0.5) == pytest.approx(expected)


def test_tool_output_counts_as_it_does_in_the_budget():
    assert of(1.0, response(50, tool=45), overlong_buffer_len=20) == pytest.approx(1 - 15 / 20)


def test_a_response_that_was_cut_keeps_a_part_of_its_reward_or_gets_a_fixed_one():
    cut = response(5, finish="length")
    assert of(2.0, cut, stop_properly_penalty_coef=0.25) == 0.5
    assert of(2.0, cut, stop_properly_penalty_coef=0.0) == 0.0
    assert of(2.0, cut, stop_properly_penalty_coef=-0.5) == -0.5
    assert of(2.0, response(5), stop_properly_penalty_coef=-0.5) == 2.0


def test_penalties_come_in_openrlhfs_order_and_the_clip_last():
    """1 - 1 * 10/20 = 0.5, cut: * 0.5 = 0.25, clipped to 0.3."""
    cut = response(90, finish="length")
    assert of(1.0, cut, overlong_buffer_len=20, stop_properly_penalty_coef=0.5, clip_range=(0.3, 1.0)) == 0.3
    assert of(7.0, response(1), clip_range=(-1.0, 1.0)) == 1.0


def test_nothing_is_shaped_unless_asked():
    assert not is_active(Reward())
    assert of(1.0, response(100, finish="length")) == 1.0


@pytest.mark.parametrize(
    ("settings", "fact"),
    [({"overlong_buffer_len": 9000}, "overlong_buffer_len"), ({"clip_range": (1, 1)}, "clip_range")],
)
def test_a_shape_that_makes_no_sense_is_refused(settings, fact):
    with pytest.raises(ValueError, match=fact):
        Config(reward=settings)


@pytest.mark.slow
def test_the_penalties_are_openrlhfs():
    from types import SimpleNamespace

    import torch
    from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties

    from openrlhf_tir.learner import openrlhf_adapter  # noqa: F401  it makes openrlhf importable

    lengths, finishes = [70, 85, 95, 100], ["stop", "length", "stop", "length"]
    batch = SimpleNamespace(
        rewards=torch.ones(4),
        response_length=torch.tensor(lengths),
        truncated=torch.tensor([f == "length" for f in finishes]),
        info={},
    )
    settings = {"overlong_buffer_len": 20.0, "overlong_penalty_factor": 0.8, "stop_properly_penalty_coef": 0.5}
    apply_length_penalties(
        [batch], SimpleNamespace(reward=SimpleNamespace(**settings), rollout=SimpleNamespace(max_new_tokens=100))
    )
    ours = [of(1.0, response(n, finish=f), **settings) for n, f in zip(lengths, finishes, strict=True)]
    assert ours == pytest.approx(batch.rewards.tolist())
