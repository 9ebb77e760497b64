"""The arithmetic of the canary: how far an engine is from the learner, and what is accepted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from openrlhf_tir.config import Config
from openrlhf_tir.types import Completion
from openrlhf_tir.weights.publisher import CEILING
from openrlhf_tir.weights.verify import (
    FACTOR,
    MIN_TOKENS,
    REMEMBERED,
    Disagreement,
    Evidence,
    Reference,
    disagreement,
    evidence,
)


def completion(logprobs, version=1, token_ids=None) -> Completion:
    n = len(logprobs)
    return Completion(
        np.asarray(token_ids or range(n), np.int32),
        np.asarray(logprobs, np.float32),
        np.full(n, version, np.int32),
        "",
        "length",
    )


def compared(engine, learner, previous=None, sampled=0) -> Disagreement:
    """Compare log-probs, of which the last `sampled` are of tokens that the engine sampled."""
    nothing_known = np.full(len(learner), np.nan)
    return disagreement(
        Evidence(
            np.asarray(engine, float),
            np.asarray(learner, float),
            nothing_known if previous is None else np.asarray(previous, float),
            np.arange(len(learner)) >= len(learner) - sampled,
        )
    )


def test_the_level_is_the_mean_difference_in_logits_over_all_uncertain_tokens():
    """The learner gives them 1/2 and 3/4. So the differences count twice and four times."""
    half, likely = np.log(0.5), np.log(0.75)
    found = compared([half] * 100 + [likely - 0.25] * 100, [half] * 100 + [likely] * 100)
    assert found == pytest.approx(Disagreement(level=0.5, most=0.25, behind=0.0, tokens=200))
    found = compared([half - 0.5] * 100 + [likely] * 100, [half] * 100 + [likely] * 100)
    assert found == pytest.approx(Disagreement(level=0.5, most=0.5, behind=0.0, tokens=200))


def test_the_same_noise_of_logits_has_the_same_level_whether_the_policy_is_certain_or_not():
    """The first order of a log-softmax: a logit's noise moves the token's log-prob by 1 - p times as much."""
    noise = np.random.default_rng(0).normal(0, 0.05, 4000)
    levels = []
    for p in (0.001, 0.3, 0.6, 0.9):
        learner = np.full(4000, np.log(p))
        logit = np.log(p / (1 - p)) + noise
        levels.append(compared(-np.log1p(np.exp(-logit)), learner).level)
    assert levels == pytest.approx([0.05 * np.sqrt(2 / np.pi)] * 4, rel=0.03)


def test_tokens_that_the_learner_is_certain_of_neither_hide_a_difference_nor_make_one():
    """1,000 certain tokens: their median would say 0, and so would a mean over all, nearly."""
    half = np.log(0.5)
    found = compared([-0.001] * 1000 + [half - 0.5] * 100, [-0.002] * 1000 + [half] * 100)
    assert (found.level, found.tokens) == (pytest.approx(1.0), 100)


def test_a_text_of_certain_tokens_alone_is_judged_by_the_least_certain_ones():
    """None of them is divided by less than 0.05, where the rounding of a log-prob would show."""
    found = compared([-0.02] * 200, np.linspace(-0.04, -0.001, 200))
    assert found.tokens == 64
    assert found.level == pytest.approx(np.abs(np.linspace(-0.04, -0.001, 200)[:64] + 0.02).mean() / 0.05)


@pytest.mark.slow
def test_right_pushes_stay_below_the_thresholds_at_the_least_number_of_tokens():
    """100,000 right pushes of 64 tokens, whose differences are spread as those measured in bf16, and no alarm."""
    rng = np.random.default_rng(1)
    shape = 0.9**-2
    levels = rng.gamma(shape, 0.07 / shape, (100_000, MIN_TOKENS)).mean(1)
    references = np.median(rng.choice(levels, (100_000, REMEMBERED)), axis=1)
    ratios = levels / references
    assert ratios.max() < FACTOR
    assert np.log(FACTOR) / np.log(ratios).std() > 5.5


def test_weights_of_the_version_before_are_farther_from_the_learner_than_from_that_version():
    new, old = np.full(100, -1.0), np.full(100, -1.3)
    assert compared(old + 0.03, new, old).behind == pytest.approx(0.27 / 0.03)
    assert compared(new + 0.03, new, old).behind == pytest.approx(0.03 / 0.33)
    assert compared(new, new, old).behind == 0
    assert compared(new + 0.03, new, new).behind == 0, "an update that moved nothing"


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_one_log_prob_that_is_not_finite_fails_the_canary_whatever_is_accepted(bad):
    found = compared([-1.0] * 99 + [bad], [-1.0] * 100)
    assert Reference(ceiling=0.5, fixed=1e9).tolerance.excess(found) > 1


def test_one_token_may_be_off_by_what_rounding_can_do_and_not_by_more():
    accepted = Reference(ceiling=0.5, fixed=1.0).tolerance
    assert accepted.excess(compared([-1.0] * 99 + [-5.9], [-1.0] * 100)) <= 1
    assert accepted.excess(compared([-1.0] * 99 + [-6.1], [-1.0] * 100)) > 1


def test_sampled_tokens_that_differ_alone_are_refused_though_they_are_few_of_all():
    """The mean of 360 tokens at .1 and 40 at 1 is .19, which hides that decoding, by other kernels, is wrong."""
    learner = np.full(400, -20.0)
    engine = learner + 0.1
    engine[-40:] = -20.0 + 1.0
    accepted = Reference(ceiling=5.0, fixed=0.5).tolerance
    found = compared(engine, learner, sampled=40)
    assert (found.level, found.decoded) == (pytest.approx(0.19), pytest.approx(1.0))
    assert accepted.excess(found) == pytest.approx(1.0 / (1.5 * 0.5))
    assert accepted.excess(compared(engine, learner)) <= 1, "none of them was sampled"
    assert compared(engine, learner, sampled=31).decoded == 0.0, "too few to judge them alone"


def test_of_certain_sampled_tokens_the_least_certain_ones_are_judged_alone():
    learner = np.concatenate([np.full(200, -1.0), np.full(20, -0.04), np.full(40, -0.001)])
    engine = learner.copy()
    engine[200:220] -= 0.01
    found = compared(engine, learner, sampled=60)
    assert found.decoded == pytest.approx(20 * 0.01 / 0.05 / 32)


def test_the_threshold_is_twice_the_median_of_the_last_accepted_pushes_and_follows_the_policy():
    reference = Reference(ceiling=0.5)
    assert reference.tolerance.level == 0.5, "before anything was accepted"
    reference.accepted([0.02])
    assert reference.tolerance.level == pytest.approx(0.04)
    reference.accepted([0.03, 0.031, 0.5])  # of three engines: their median counts, once
    reference.accepted([0.03])
    assert reference.tolerance.level == pytest.approx(2 * 0.03)
    for _ in range(16):
        reference.accepted([0.01])
    assert reference.tolerance.level == pytest.approx(0.02)


def test_the_threshold_is_neither_beyond_the_ceiling_nor_zero():
    reference = Reference(ceiling=0.5)
    reference.accepted([0.4])
    assert reference.tolerance.level == 0.5
    reference.levels.clear()
    reference.accepted([0.0])
    assert reference.tolerance.level == 1e-5


def test_a_texts_own_tokens_count_where_the_engine_scored_them_and_a_shared_beginning_once():
    texts = [[1, 2, 3, 4], [1, 2, 7, 8]]
    sampled = [
        replace(completion([-0.5]), prompt_logprobs=np.array([-1.0, -2.0, -3.0])),
        replace(completion([-0.6]), prompt_logprobs=np.array([-1.0, -5.0, -6.0])),
    ]
    scores = [np.array([-1.5, -2.0, -3.0, -0.5]), np.array([-1.5, -5.0, -6.0, -0.6])]
    found = evidence(texts, sampled, scores, [np.array([-9.0, -9.0, -9.0])] * 2)
    assert found.engine_T.tolist() == pytest.approx([-1.0, -2.0, -3.0, -0.5, -5.0, -6.0, -0.6])
    assert found.learner_T.tolist() == pytest.approx([-1.5, -2.0, -3.0, -0.5, -5.0, -6.0, -0.6])
    assert np.isnan(found.previous_T).tolist() == [False, False, False, True, False, False, True]
    assert found.sampled_T.tolist() == [False, False, False, True, False, False, True]


def test_of_an_engine_that_scores_no_texts_the_sampled_tokens_count():
    found = evidence([[1, 2, 3]], [completion([-0.5, -0.75])], [np.array([-9.0, -9.0, -0.5, -1.0])])
    assert found.engine_T.tolist() == [-0.5, -0.75] and found.learner_T.tolist() == [-0.5, -1.0]


def test_scores_that_do_not_align_are_a_bug():
    with pytest.raises(ValueError, match=r"^1 .* 2 "):
        evidence([[1, 2]], [completion([-1.0])], [np.zeros(3)])


def test_a_canary_without_tokens_proves_nothing():
    with pytest.raises(ValueError, match=r"^0 "):
        evidence([], [], [])


@pytest.mark.slow
def test_in_fp32_the_error_of_torchs_normaliser_is_far_from_what_is_refused():
    """A trained policy with a large vocabulary, uncertain of its sampled tokens by 5 to 20 %: the engine's log-probs
    are torch's, whose sum over the vocabulary loses what is small, and the learner's are exact."""
    torch.manual_seed(0)
    logits_TV = 5 * torch.randn(64, 262_144)
    logits_TV[:, 0] = torch.logsumexp(logits_TV[:, 1:].double(), -1).float() + torch.linspace(1.4, 3, 64)
    engine_T = torch.log_softmax(logits_TV, -1)[:, 0].double().numpy()
    learner_T = torch.log_softmax(logits_TV.double(), -1)[:, 0].numpy()
    assert np.exp(learner_T).min() > 0.8 and np.exp(learner_T).max() < 0.96
    unknown_T = np.full(64, np.nan)
    found = disagreement(Evidence(engine_T, learner_T, unknown_T, np.ones(64, bool)))
    cfg = Config.model_validate({"ds": {"param_dtype": "fp32"}, "vllm": {"dtype": "float32"}})
    excess = Reference(CEILING, cfg.fixed_canary_tolerance).tolerance.excess(found)
    assert 0.001 < excess < 0.6
