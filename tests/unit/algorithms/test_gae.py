"""GAE over a policy's own tokens, by hand and against its definition as a sum, and the figures of a critic."""

from __future__ import annotations

import numpy as np
import pytest

from openrlhf_tir.algorithms.advantages import AdvantageInputs, get_estimator
from openrlhf_tir.algorithms.advantages.gae import advantages_and_returns, token_rewards_by_turn


def test_three_tokens_by_hand():
    """gamma = lambda = 0.5, V = 1, 2, 4, 8 at the end: delta = 0.5*2-1, 0.5*4-2, 8-4 = 0, 0, 4; A = 0.25, 1, 4."""
    own = np.ones(3, bool)
    advantages, returns = advantages_and_returns(np.array([0.0, 0, 8]), np.array([1.0, 2, 4]), own, 0.5, 0.5)
    assert advantages.tolist() == [0.25, 1.0, 4.0]
    assert returns.tolist() == [1.25, 3.0, 8.0]


def test_tool_output_neither_discounts_nor_bootstraps():
    """The same three tokens with a tool's answer of two between them, of whatever value."""
    own = np.array([True, False, False, True, True])
    advantages, returns = advantages_and_returns(
        np.array([0.0, 7, 7, 0, 8]), np.array([1.0, 50, 50, 2, 4]), own, 0.5, 0.5
    )
    assert advantages.tolist() == [0.25, 0.0, 0.0, 1.0, 4.0]
    assert returns.tolist() == [1.25, 0.0, 0.0, 3.0, 8.0]


@pytest.mark.parametrize(("gamma", "lambd"), [(1.0, 1.0), (0.99, 0.95), (0.9, 0.0), (0.5, 0.3)])
def test_it_is_the_sum_of_discounted_errors(gamma, lambd):
    rng = np.random.default_rng(0)
    own, r, v = rng.random(40) < 0.6, rng.normal(size=40), rng.normal(size=40)
    places = np.flatnonzero(own)
    deltas = r[places] + gamma * np.append(v[places][1:], 0.0) - v[places]
    expected = [sum((gamma * lambd) ** (j - k) * deltas[j] for j in range(k, len(places))) for k in range(len(places))]
    advantages, returns = advantages_and_returns(r, v, own, gamma, lambd)
    assert advantages[places] == pytest.approx(np.array(expected), abs=1e-12)
    assert returns[places] == pytest.approx(np.array(expected) + v[places], abs=1e-12)
    assert not advantages[~own].any() and not returns[~own].any()


def test_with_gamma_and_lambda_one_the_return_is_the_outcome_and_the_critic_a_baseline():
    """ZeroTIR's PPO: A_t = R - V_t."""
    advantages, returns = advantages_and_returns(
        np.array([0.0, 0, 1]), np.array([0.2, 0.5, 0.9]), np.ones(3, bool), 1.0, 1.0
    )
    assert advantages == pytest.approx([0.8, 0.5, 0.1])
    assert returns == pytest.approx([1.0, 1.0, 1.0])


def test_the_outcome_is_paid_at_the_last_own_token_and_the_group_is_no_baseline():
    masks = [np.array([True, True, False]), np.array([False, False, False])]
    estimator = get_estimator("gae")
    assert [r.tolist() for r in estimator(AdvantageInputs(np.array([3.0, 1.0]), masks))] == [[0, 3, 0], [0, 0, 0]]
    assert estimator.critic and estimator.whiten


def test_with_credit_to_turns_each_is_paid_where_it_ends_and_nothing_is_lost():
    """Tokens of turn 0: own, own, tool; turn 1: own, tool; turn 2: own. Turns earned 1, 2 and nothing, the trajectory
    4: 1 is the outcome's own."""
    own = np.array([True, True, False, True, False, True])
    (rewards,) = token_rewards_by_turn(
        AdvantageInputs(np.array([4.0]), [own]), [np.array([0, 0, 0, 1, 1, 2])], [np.array([1.0, 2.0, 0.0])]
    )
    assert rewards.tolist() == [0, 1, 0, 2, 0, 1]
    advantages, _ = advantages_and_returns(rewards, np.zeros(6), own, 1.0, 1.0)
    assert advantages.tolist() == [4, 4, 0, 3, 0, 1]
    (masked,) = token_rewards_by_turn(
        AdvantageInputs(np.array([4.0]), [own & (np.arange(6) != 3)]),
        [np.array([0, 0, 0, 1, 1, 2])],
        [np.array([1.0, 2.0, 0.0])],
    )
    assert masked.tolist() == [0, 1, 0, 0, 0, 3]


@pytest.mark.slow
def test_gae_is_openrlhfs_where_every_token_is_the_policys():
    import torch
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

    from openrlhf_tir.learner import openrlhf_adapter  # noqa: F401  it makes openrlhf importable

    rng = np.random.default_rng(1)
    r, v, mask = rng.normal(size=12), rng.normal(size=12), torch.ones(1, 12)
    as_row = lambda x: torch.from_numpy(x)[None]  # noqa: E731
    adv, ret = RemoteExperienceMaker.get_advantages_and_returns(None, as_row(v), as_row(r), mask, 0.97, 0.9)
    advantages, returns = advantages_and_returns(r, v, np.ones(12, bool), 0.97, 0.9)
    assert advantages == pytest.approx(adv[0].numpy(), rel=1e-6)
    assert returns == pytest.approx(ret[0].numpy(), rel=1e-6)


@pytest.mark.slow
def test_the_clipped_value_loss_and_its_gradient_are_those_of_the_formula():
    """0.5 * mean max((V - R)^2, (V_old + clip(V - V_old, +-0.5) - R)^2), the masked token left out; float64."""
    import torch

    from openrlhf_tir.learner.openrlhf_adapter import ValueLoss

    values, old = [0.0, 2.0, 1.0, 3.0], [0.0, 0.5, 1.8, 3.0]
    returns = torch.tensor([[1.0, 3.0, 0.0, 9.0]], dtype=torch.float64)
    mask = torch.tensor([[1.0, 1, 1, 0]], dtype=torch.float64)
    v = torch.tensor([values], dtype=torch.float64, requires_grad=True)
    loss = ValueLoss(0.5)(
        v, torch.tensor([old], dtype=torch.float64), returns, action_mask=mask, batch_num_tokens=3, dp_size=1
    )
    # token 0: unmoved, 1; token 1: clipped to 1, (1 - 3)^2 = 4 > 1, no gradient;
    # token 2: clipped to 1.3, 1.69 > 1, no gradient
    assert loss.item() == pytest.approx(0.5 * (1 + 4 + 1.69) / 3)
    loss.backward()
    assert v.grad[0].tolist() == pytest.approx([-1 / 3, 0, 0, 0])


@pytest.mark.slow
def test_explained_variance_is_one_for_a_prophet_and_zero_for_a_constant():
    from openrlhf_tir.learner.roles.auxiliary_models import value_metrics

    def sums(v, r):
        v, r = np.array(v), np.array(r)
        return np.array([len(v), v.sum(), (v * v).sum(), r.sum(), (r * r).sum(), ((r - v) ** 2).sum()])

    returns = [1.0, 0.0, 1.0, 0.0]
    assert value_metrics(sums(returns, returns))["explained_variance"] == pytest.approx(1)
    assert value_metrics(sums([0.3] * 4, returns))["explained_variance"] == pytest.approx(0)
    assert value_metrics(sums([0.0, 1.0, 0.0, 1.0], returns))["explained_variance"] == pytest.approx(-3)
    assert "explained_variance" not in value_metrics(sums([0.3] * 4, [1.0] * 4))
    assert value_metrics(sums([0.0, 1.0, 0.0, 1.0], returns))["value_std"] == pytest.approx(0.5)
    assert value_metrics(np.zeros(6)) == {}
