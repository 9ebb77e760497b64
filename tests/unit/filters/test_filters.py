"""Group filters and ZeroTIR's sample filters by hand."""

from __future__ import annotations

import pytest

from openrlhf_tir.config import Filter
from openrlhf_tir.filters.samples import SampleFilter
from openrlhf_tir.filters.zerotir import length_balance, mask_reason, too_many_failed
from tests.unit.filters.in_process import build
from tests.unit.rewards.reward_fakes import group, scored


def reason(members, **cfg):
    verdict = build(Filter(**cfg))(group(*members))
    assert verdict.keep == (verdict.reason == "")
    return verdict.reason


@pytest.mark.parametrize(
    ("right", "of", "bounds", "want"),
    [
        (0, 4, (0.0, 1.0), "accuracy_low"),
        (1, 4, (0.0, 1.0), ""),
        (4, 4, (0.0, 1.0), "accuracy_high"),
        (1, 5, (0.2, 0.8), "accuracy_low"),  # strictly above
        (4, 5, (0.2, 0.8), "accuracy_high"),
        (2, 5, (0.2, 0.8), ""),
    ],
)
def test_accuracy_must_lie_strictly_between(right, of, bounds, want):
    assert reason([scored(float(i < right)) for i in range(of)], accuracy_range=bounds) == want


def test_only_valid_trajectories_count():
    dead = scored(1.0, failed="timeout")
    assert reason([scored(0.0), scored(0.0), dead]) == "accuracy_low"
    assert reason([scored(1.0), scored(0.0), dead]) == ""


def test_equal_rewards_teach_nothing():
    same = [scored(1.0, reward=0.5), scored(0.0, reward=0.5)]
    assert reason(same) == "zero_variance"
    assert reason(same, names=["accuracy"]) == ""


def test_a_length_gap_that_reaches_the_limit_is_dropped():
    members = [scored(1.0, tokens=50), scored(1.0, tokens=150), scored(0.0, tokens=200)]  # means 100 and 200
    assert reason(members, options={"max_length_gap": 100.0}) == "length_gap"
    assert reason(members, options={"max_length_gap": 100.5}) == ""
    assert reason(members) == ""


def test_too_many_truncated_responses_drop_the_group():
    members = [scored(1.0), scored(0.0, finish="length"), scored(0.0, finish="length"), scored(0.0)]
    assert reason(members, options={"max_truncated": 0.5}) == ""
    assert reason(members, options={"max_truncated": 0.49}) == "truncated"


@pytest.mark.parametrize(
    "options", [{"max_length_gap": 0}, {"max_length_gap": True}, {"max_truncated": -0.1}, {"max_truncated": 1.5}]
)
def test_a_limit_outside_its_range_is_refused(options):
    with pytest.raises(ValueError, match=r"filter\.options"):
        Filter(options=options)


def test_the_first_reason_wins():
    assert reason([scored(1.0), scored(1.0)], options={"max_length_gap": 1.0}) == "accuracy_high"


CLEAN = {
    "answer_rewards": 1.0, "format_answer": 0.0, "length_rewards": 500, "truncated": 0.0, "other": 0.0,
    "repeatness": 0.01, "repetition_penalty": 0.1, "code_count": 1.0, "output_count": 1.0, "partial_code_count": 1.0,
    "code_exection_times": 1.0, "code_exection_all_failed": 0.0, "rule_eval_fails": 0.0, "model_eval_fails": 0.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "dropped"),
    [
        ({}, False),
        ({"truncated": 1.0}, False),  # right anyway
        ({"truncated": 1.0, "answer_rewards": 0.0}, True),
        ({"length_rewards": 8192, "answer_rewards": 0.0}, True),
        ({"other": 1.0}, True),
        ({"output_count": 2.0}, True),  # an output that nothing produced
        ({"code_exection_times": 0.0}, True),
        ({"output_count": 2.0, "answer_rewards": 0.0}, True),
        ({"output_count": 2.0, "answer_rewards": 0.0, "code_exection_all_failed": 1.0}, False),
        ({"output_count": 2.0, "answer_rewards": 0.0, "format_answer": 1.0}, False),
        ({"format_answer": 1.0, "answer_rewards": 0.0, "repetition_penalty": 0.7}, True),
        ({"repeatness": 0.3}, False),  # well-formed
    ],
)
def test_samples_are_masked_for_cheating_and_rambling(change, dropped):
    assert bool(mask_reason({**CLEAN, **change}, base_ppl=None, max_tokens=8192)) is dropped


def test_an_improbable_sample_is_masked():
    assert mask_reason(CLEAN, base_ppl=5.1, max_tokens=8192) == "improbable"
    assert not mask_reason(CLEAN, base_ppl=5.0, max_tokens=8192)


def test_a_group_tolerates_two_failed_verdicts_in_five():
    failed = {**CLEAN, "rule_eval_fails": 1.0, "model_eval_fails": 1.0}
    assert not too_many_failed([failed, failed, CLEAN, CLEAN, CLEAN])
    assert too_many_failed([failed, failed, CLEAN, CLEAN])


def test_length_balance_keeps_groups_with_a_sample_in_a_good_bin():
    # Bin 2000..2999 holds 1 right of 21 (4.8 %), then of 19 (5.3 %); bin 0..999 1 of 2.
    rambling = [(2500, 1.0)] + [(2500, 0.0)] * 20
    assert length_balance({"short": [(10, 1.0), (999, 0.0)], "rambling": rambling}) == {"short"}
    assert length_balance({"rambling": rambling[:-2]}) == {"rambling"}
    assert length_balance({"endless": [(31_000, 1.0)]}) == set()


def test_what_the_limit_cut_is_masked_whatever_it_is_worth():
    members = group(scored(1.0), scored(1.0, finish="length"), scored(0.0, finish="length"))
    assert SampleFilter("over_length")(members, {}) == ["", "over_length", "over_length"]
