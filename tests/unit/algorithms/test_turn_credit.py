"""Credit to the turn, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from openrlhf_tir.algorithms.advantages import AdvantageInputs, get_estimator
from openrlhf_tir.algorithms.advantages.turns import per_turn
from openrlhf_tir.config import Config
from openrlhf_tir.types import Segment, ToolCall, Trajectory
from tests.e2e.support.learner_batch import group_of, make_batch, trajectory


def test_a_turn_is_compared_with_the_same_turn_of_its_group():
    """Two trajectories of two turns: the first earns 1 by its first call, the second 1 by its second. Both are worth 1,
    and yet:

    turn 0: returns 1 and 1, no difference. Turn 1: 1 - 1 = 0 against 1: -0.5 and +0.5.
    """
    turns = [np.array([0, 0, 1]), np.array([0, 1, 1])]
    masks = [np.array([True, False, True])] * 2
    inputs = AdvantageInputs(np.array([1.0, 1.0]), masks)
    out = per_turn(get_estimator("reinforce_baseline").fn, inputs, turns, [np.array([1.0, 0.0]), np.array([0.0, 1.0])])
    assert [a.tolist() for a in out] == [[0.0, 0.0, -0.5], [0.0, 0.0, 0.5]]


def test_without_rewards_of_calls_and_with_as_many_turns_it_is_the_trajectorys_advantage():
    rewards, masks = np.array([1.0, 0.0, 0.0]), [np.ones(4, bool)] * 3
    turns = [np.array([0, 1, 1, 2])] * 3
    for name in ("reinforce_baseline", "rloo", "group_norm", "dr_grpo"):
        fn = get_estimator(name).fn
        inputs = AdvantageInputs(rewards, masks)
        assert np.allclose(per_turn(fn, inputs, turns, [np.zeros(3)] * 3), fn(inputs))


def test_a_turn_that_nobody_else_has_learns_nothing_from_a_group():
    turns = [np.array([0, 1]), np.array([0])]
    masks = [np.ones(2, bool), np.ones(1, bool)]
    out = per_turn(
        get_estimator("rloo").fn, AdvantageInputs(np.array([3.0, 1.0]), masks), turns, [np.zeros(2), np.zeros(1)]
    )
    assert [a.tolist() for a in out] == [[2.0, 0.0], [-2.0]]


def test_tokens_belong_to_the_model_segment_that_they_are_in_or_follow():
    t = trajectory(0, [1], [("env", [9], None), ("model", [5, 6], 0), ("env", [7], None), ("model", [8], 0)], 1.0)
    assert t.turns.tolist() == [0, 0, 0, 0, 1]


def test_what_calls_earned_is_their_turns():
    """Turn 1 made no call: it was told to go on, say, and turn 2 made the second."""
    model = Segment("model", np.array([1], np.int32), np.zeros(1, np.float32), np.zeros(1, np.int32))
    calls = [
        ToolCall("a", "", "ok", reward=0.25, turn=0),
        ToolCall("b", "", "ok", reward=None, turn=2),
        ToolCall("c", "", "ok", reward=1.0, turn=2),
    ]
    assert Trajectory(0, np.array([1], np.int32), [model] * 3, calls).earned(weight=2.0).tolist() == [0.5, 0.0, 2.0]


def test_the_learner_gives_credit_by_turn_when_asked_to():
    from openrlhf_tir.learner.rows import batch_samples

    trajectories = [
        trajectory(i, [1], [("model", [5], 0), ("env", [7], None), ("model", [8], 0)], 1.0) for i in range(2)
    ]
    for t, rewards in zip(trajectories, ((1.0, 0.0), (0.0, 1.0)), strict=True):
        t.calls = [ToolCall("x", "", "ok", reward=r, turn=j) for j, r in enumerate(rewards)]
    groups = [group_of(0, [1], trajectories)]
    cfg = Config(reward={"name": "env"}, algo={"advantage": {"credit": "turn", "estimator": "dr_grpo"}})
    samples = batch_samples(make_batch(groups, 1), groups, cfg, get_estimator("dr_grpo"))
    assert [s.advantages.tolist() for s in samples] == [[0.0, 0.0, -0.5], [0.0, 0.0, 0.5]]


@pytest.mark.parametrize(
    ("tree", "setting"),
    [
        ({}, r" reward\.name = math "),
        ({"reward": {"name": "env", "options": {"reduce": "last"}}}, r" reward\.options .*'last'"),
        ({"reward": {"name": "env", "group": "otc"}}, r" reward\.group = 'otc' "),
        # Calls that earn 2 and 3, clipped to 1: the second turn would be worth 1 - 2 = -1.
        ({"reward": {"name": "env", "clip_range": [0, 1]}}, r" reward\.clip_range = \(0\.0, 1\.0\) "),
        (
            {"reward": {"name": "env", "stop_properly_penalty_coef": 0.5}},
            r" reward\.stop_properly_penalty_coef = 0\.5 ",
        ),
        (
            {
                "reward": {"name": "env"},
                "algo": {"advantage": {"credit": "turn", "estimator": "reinforce", "gamma": 0.9}},
            },
            r" algo\.advantage\.gamma = 0\.9 ",
        ),
        (
            {"reward": {"name": "env"}, "actor": {"policy_loss_type": "gspo"}},
            r" actor\.policy_loss_type = 'gspo' ",
        ),
    ],
)
def test_credit_that_has_nothing_to_split_is_refused(tree, setting):
    with pytest.raises(ValidationError, match=rf"algo\.advantage\.credit = 'turn' .*{setting}"):
        Config.model_validate({"algo": {"advantage": {"credit": "turn"}}, **tree})
