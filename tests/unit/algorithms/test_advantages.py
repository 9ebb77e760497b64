"""Advantage estimators, each on an example worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from openrlhf_tir.algorithms.advantages import ESTIMATORS, AdvantageInputs, get_estimator
from openrlhf_tir.algorithms.advantages.base import returns_to_go
from openrlhf_tir.algorithms.advantages.whiten import mean_and_scale, moments, whiten
from openrlhf_tir.errors import ConfigError

THREE = np.ones(3, bool)


def run(name: str, rewards: list[float], gamma: float = 1.0, masks=None) -> list[list[float]]:
    rewards_G = np.array(rewards, np.float64)
    masks = masks or [THREE] * len(rewards)
    return [a.tolist() for a in get_estimator(name).fn(AdvantageInputs(rewards_G, masks, gamma))]


def test_the_group_mean_is_the_baseline_and_every_trained_token_gets_the_same():
    assert run("reinforce_baseline", [1, 0, 0, 1]) == [[0.5] * 3, [-0.5] * 3, [-0.5] * 3, [0.5] * 3]
    assert run("dr_grpo", [1, 0, 0]) == [
        [pytest.approx(2 / 3)] * 3,
        [pytest.approx(-1 / 3)] * 3,
        [pytest.approx(-1 / 3)] * 3,
    ]


def test_rloo_leaves_the_sample_out_of_its_own_baseline():
    # others of the first: (0 + 0.5) / 2 = 0.25; of the second: 0.75; of the third: 0.5
    assert run("rloo", [1, 0, 0.5]) == [[0.75] * 3, [-0.75] * 3, [0.0] * 3]


def test_rloo_of_a_single_survivor_learns_nothing():
    assert run("rloo", [1]) == [[0.0] * 3]


def test_group_norm_divides_by_the_unbiased_std():
    # mean 0.5, squared deviations 4 * 0.25 = 1, / 3 -> std 0.57735: 0.5 / 0.57735 = 0.866
    assert np.allclose(run("group_norm", [1, 0, 0, 1]), np.outer([1, -1, -1, 1], [0.8660239] * 3), atol=1e-6)


def test_group_norm_of_equal_rewards_or_one_sample_is_zero():
    assert run("group_norm", [1, 1, 1]) == [[0.0] * 3] * 3
    assert run("group_norm", [1]) == [[0.0] * 3]


@pytest.mark.parametrize("name", [name for name, e in ESTIMATORS.items() if e.compares_responses] + ["flash_reinforce"])
@pytest.mark.parametrize("samples", [2, 3, 6, 7, 16])
def test_equal_rewards_are_exactly_zero_also_where_their_mean_is_rounded(name, samples):
    """The mean of three times 0.1 is 0.10000000000000002."""
    masks = [np.ones(length, bool) for length in range(1, samples + 1)]
    assert not any(any(advantages) for advantages in run(name, [0.1] * samples, masks=masks))


def test_reinforce_discounts_back_from_the_last_trained_token():
    assert run("reinforce", [2], gamma=0.5) == [[0.5, 1.0, 2.0]]


def test_the_reward_sits_on_the_last_token_the_model_wrote_even_when_tool_output_ends_the_response():
    trained = np.array([True, False, True, False])  # model, tool, model, tool
    assert returns_to_go(1.0, trained, 0.5).tolist() == [0.25, 0.0, 1.0, 0.0]


def test_a_trajectory_without_a_trained_token_gets_zeros():
    assert returns_to_go(1.0, np.zeros(3, bool), 1.0).tolist() == [0.0, 0.0, 0.0]


def test_opo_weighs_the_baseline_by_length():
    # lengths 3 and 1, rewards 1 and 0: b = 3/4. Equal lengths: the mean.
    assert run("opo", [1, 0], masks=[THREE, np.array([True, False, False])]) == [[0.25] * 3, [-0.75, 0.0, 0.0]]
    assert run("opo", [1, 0]) == run("dr_grpo", [1, 0])


def test_flash_reinforce_compares_with_the_whole_batch():
    inputs = AdvantageInputs(np.array([1.0]), [THREE], batch_rewards=np.array([1.0, 0.0, 0.0, 0.0]))
    assert get_estimator("flash_reinforce").fn(inputs)[0].tolist() == [0.75] * 3


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_declares_that_its_group_is_enough_if_the_other_rewards_of_the_batch_change_nothing(name):
    estimator = ESTIMATORS[name]
    rewards = [1.0, 0.0, 0.0]

    def beside(others: list[float]) -> list[list[float]]:
        inputs = AdvantageInputs(np.array(rewards), [THREE] * 3, batch_rewards=np.array(rewards + others))
        return [advantage.tolist() for advantage in estimator.fn(inputs)]

    assert (beside([0.0]) == beside([1.0, 1.0])) is estimator.by_group


@pytest.mark.parametrize("name", [name for name, estimator in ESTIMATORS.items() if not estimator.critic])
def test_an_estimator_declares_whether_gamma_discounts_its_rewards(name):
    estimator = ESTIMATORS[name]
    whole, discounted = (
        [advantage.tolist() for advantage in estimator.fn(AdvantageInputs(np.array([1.0, 0.0]), [THREE] * 2, gamma))]
        for gamma in (1.0, 0.5)
    )
    assert (whole != discounted) is estimator.discounts


def test_whitening_weighs_tokens_not_trajectories():
    # +1 on three tokens, -1 on one: mean 0.5, variance 1 - 0.25 = 0.75, 1/std = 1.1547
    adv, masks = [np.ones(3), -np.ones(1)], [THREE, np.ones(1, bool)]
    mean, scale = mean_and_scale(moments(adv, masks))
    assert (mean, scale) == (pytest.approx(0.5), pytest.approx(1.1547005))
    assert whiten(adv[0], masks[0], mean, scale).tolist() == pytest.approx([0.5773503] * 3)
    assert whiten(adv[1], masks[1], mean, scale).tolist() == pytest.approx([-1.7320508])


def test_what_is_centred_over_tokens_is_not_over_responses():
    """A right response of three tokens, a wrong one of one: 3 * .58 - 1.73 = 0, and (.58 - 1.73) / 2 = -.58. A loss
    that is a mean over responses then pushes every response down, which preflight remarks on."""
    adv, masks = [np.ones(3), -np.ones(1)], [THREE, np.array([True])]
    mean, scale = mean_and_scale(moments(adv, masks))
    whitened = [whiten(a, m, mean, scale) for a, m in zip(adv, masks, strict=True)]
    for of_tokens in (whitened, run("opo", [1, 0], masks=masks)):
        assert sum(sum(a) for a in of_tokens) == pytest.approx(0.0)
        assert np.mean([np.mean(a) for a in of_tokens]) < -0.2
    assert np.mean([a[0] for a in run("group_norm", [1, 0], masks=masks)]) == pytest.approx(0.0)


def test_whitening_ignores_tool_output_and_leaves_zero_there():
    trained = np.array([True, False, True])
    assert moments([np.array([2.0, 99.0, 4.0])], [trained]).tolist() == [2.0, 6.0, 20.0]
    assert whiten(np.array([2.0, 99.0, 4.0]), trained, 3.0, 1.0).tolist() == [-1.0, 0.0, 1.0]


def test_moments_of_two_ranks_add_up_to_those_of_one():
    rng = np.random.default_rng(0)
    adv = [rng.normal(size=7) for _ in range(6)]
    masks = [rng.random(7) < 0.6 for _ in adv]
    whole = mean_and_scale(moments(adv, masks))
    split = mean_and_scale(moments(adv[:2], masks[:2]) + moments(adv[2:], masks[2:]))
    assert np.allclose(whole, split, rtol=1e-14)


def test_no_std_norm_only_centres():
    assert mean_and_scale(np.array([4.0, 2.0, 4.0]), no_std_norm=True) == (0.5, 1.0)


def test_a_batch_without_differences_is_not_blown_up():
    mean, scale = mean_and_scale(np.array([4.0, 2.0, 1.0]))  # all 0.5: variance 0, clamped to 1e-8
    assert (mean, scale) == (0.5, pytest.approx(1e4))


def test_these_estimators_need_the_whole_batch_and_one_a_critic():
    whole_batch = {name for name, estimator in ESTIMATORS.items() if estimator.whole_batch}
    assert whole_batch == {"reinforce", "reinforce_baseline", "flash_reinforce", "gae"}
    assert {name for name, estimator in ESTIMATORS.items() if estimator.critic} == {"gae"}


def test_only_the_estimators_without_their_own_scale_are_whitened():
    assert {name for name, e in ESTIMATORS.items() if e.whiten} == {"reinforce", "reinforce_baseline", "gae"}


def test_an_unknown_estimator_is_refused_with_the_known_ones():
    with pytest.raises(
        ConfigError, match=r"Unknown advantage estimator .grpo..* Known: dr_grpo, flash_reinforce, gae, group_norm"
    ):
        get_estimator("grpo")
