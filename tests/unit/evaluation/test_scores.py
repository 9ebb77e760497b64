"""Scores of an evaluation, by hand."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from openrlhf_tir.evaluation.items import Item
from openrlhf_tir.evaluation.scores.bootstrap import Interval, Ratio, intervals
from openrlhf_tir.evaluation.scores.figures import figures
from openrlhf_tir.evaluation.scores.majority import ballot, maj_at_k
from openrlhf_tir.evaluation.scores.pass_at_k import ks_of, pass_at_k, pass_hat_k
from openrlhf_tir.evaluation.table import percent


def item(
    index: int,
    correct: list[int],
    calls: list[int],
    *,
    ok: list[int] | None = None,
    answers=None,
    tokens=None,
    kind="all",
    failures=None,
) -> Item:
    n = len(correct)
    return Item(
        "s",
        index,
        f"row{index}",
        kind,
        "python_tir",
        "p",
        "l",
        [bool(c) for c in correct],
        [float(c) for c in correct],
        answers or ["1" if c else "2" for c in correct],
        calls,
        ok or calls,
        [c > 0 for c in calls],
        tokens or [10] * n,
        [5] * n,
        [False] * n,
        [""] * n,
        failures or {},
    )


def test_pass_at_k_is_the_mean_over_all_subsets():
    """5 samples, 2 right, k = 3: of 10 subsets one has none of them -> 9/10; all of 3 right never."""
    right = [1, 1, 0, 0, 0]
    assert pass_at_k(5, 2, 3) == pytest.approx(0.9) == np.mean([any(s) for s in combinations(right, 3)])
    assert pass_hat_k(5, 2, 2) == pytest.approx(0.1) == np.mean([all(s) for s in combinations(right, 2)])
    assert pass_hat_k(5, 2, 3) == 0.0 and pass_at_k(5, 4, 2) == 1.0
    assert pass_at_k(4, 1, 1) == pass_hat_k(4, 1, 1) == 0.25


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, 2, 5), (4, 2, 0), (4, -1, 1)])
def test_pass_at_k_of_impossible_counts_is_refused(n, c, k):
    with pytest.raises(ValueError, match=f"{c} .*{n} .*k = {k}"):
        pass_at_k(n, c, k)


def test_the_ks_are_powers_of_two_and_n():
    assert (ks_of(1), ks_of(6), ks_of(8)) == ([1], [1, 2, 4, 6], [1, 2, 4, 8])


def test_the_commonest_answer_is_judged_and_ties_are_shared():
    assert maj_at_k(["7", "7", "8"], [True, True, False], 3) == 1.0
    assert maj_at_k(["7", "8"], [True, False], 2) == 0.5
    assert maj_at_k(["8", "8", "7"], [False, False, True], 3) == 0.0


def test_an_answer_is_worth_the_share_of_its_samples_that_are_right():
    assert maj_at_k(["7", "7", "8"], [True, False, False], 3) == 0.5


def test_of_fewer_votes_than_samples_the_mean_over_subsets_is_told():
    """7 7 8 in pairs: 77 -> 1, 78 -> 1/2, 78 -> 1/2."""
    assert maj_at_k(["7", "7", "8"], [True, True, False], 2) == pytest.approx(2 / 3)
    assert maj_at_k(["7", "7", "8"], [True, True, False], 1) == pytest.approx(2 / 3)


def test_who_has_no_answer_does_not_vote():
    assert maj_at_k([None, None, "7"], [False, False, True], 3) == 1.0
    assert maj_at_k([None, None], [False, False], 2) == 0.0


def test_many_subsets_are_drawn_with_a_seed():
    answers, correct = ["7"] * 20 + ["8"] * 12, [True] * 20 + [False] * 12
    first = maj_at_k(answers, correct, 9, seed=3)
    assert first == maj_at_k(answers, correct, 9, seed=3) and 0.7 < first < 0.95


def test_random_subsets_hold_no_sample_twice():
    """11 right of 20 in 1,140 subsets of 17: the right ones lose the vote only where all of the 3 left out are right,
    165 times. 1 - 165/1140 = .855."""
    assert maj_at_k(["7"] * 11 + ["8"] * 9, [True] * 11 + [False] * 9, 17) == pytest.approx(1 - 165 / 1140, abs=0.04)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0.50", ".5"),
        ("$12$", "12."),
        ("1,000", "1000"),
        (r"\text{Even}", "even"),
        ("x + 1", "x+1"),
        ("-0", "0"),
        ("007", "7"),
        ("1e3", "1e3"),
    ],
)
def test_answers_that_read_the_same_vote_together(one, other):
    assert ballot(one) == ballot(other)


@pytest.mark.parametrize(("one", "other"), [("1/2", "0.5"), ("-3", "3"), ("12", "1,2"), ("", "0"), (".", "0")])
def test_answers_that_differ_do_not(one, other):
    assert ballot(one) != ballot(other)


def test_an_interval_is_of_problems_not_of_samples():
    """One problem right, one wrong: resamples give 0, 1/2 or 1, each end more than 2.5 % of the time."""
    half = Ratio(np.array([1.0, 0.0]), np.ones(2))
    sure = Ratio(np.ones(2), np.ones(2))
    nothing = Ratio(np.zeros(2), np.zeros(2))
    found = intervals({"half": half, "sure": sure, "nothing": nothing}, seed=1)
    assert found == {
        "half": Interval(0.5, 0.0, 1.0),
        "sure": Interval(1.0, 1.0, 1.0),
        "nothing": Interval(None, None, None),
    }


def test_one_problem_has_a_figure_and_no_interval():
    """It was as wide as a point, however many samples the problem had; of two problems one may have no say."""
    assert figures([item(0, [1, 0], [1, 0])], 2)["avg@2"] == [0.5, None, None]
    one = Ratio(np.array([0.5, 0.0]), np.array([1.0, 0.0]))
    assert intervals({"one": one})["one"] == Interval(0.5, None, None)
    assert percent([0.5, None, None]) == "50.0" and percent([None] * 3) == "-"
    assert percent([0.5, 0.25, 0.75]) == "50.0 [25.0, 75.0]"


def test_the_interval_has_the_width_of_the_binomial():
    """400 problems, half right: 1.96 * sqrt(.25 / 400) = .049."""
    found = intervals({"a": Ratio(np.arange(400) % 2, np.ones(400))}, seed=0)["a"]
    assert found.value == 0.5 and found.high - found.low == pytest.approx(0.098, abs=0.008)


ITEMS = [
    item(0, [1, 1, 0, 0], [2, 0, 1, 0], ok=[2, 0, 0, 0], tokens=[10, 20, 30, 40], kind="easy"),
    item(1, [0, 0, 0, 0], [1, 1, 1, 1], ok=[1, 1, 0, 0], answers=["2", "3", "2", None], kind="hard"),
]


def test_where_right_responses_state_no_answer_there_is_no_majority():
    """BFCL: a right response is a call. A set without a right response has a majority, which is wrong."""
    calls = [item(0, [1, 0], [1, 1], answers=[None, "7"]), item(1, [1, 1], [1, 1], answers=[None, None])]
    assert (
        figures(calls, 2)["maj@k"] == {"1": [None] * 3, "2": [None] * 3} and figures(calls, 2)["pass@k"]["2"][0] == 1.0
    )
    assert figures([item(0, [0, 0], [0, 0], answers=[None, None])], 2)["maj@k"]["2"][0] == 0.0
    assert figures([item(0, [1, 1], [0, 0], answers=[None, "7"])], 2)["maj@k"]["2"][0] == 1.0


def test_figures_of_two_problems_by_hand():
    f = figures(ITEMS, 4)
    assert (f["problems"], f["samples"], f["failed"], f["n"]) == (2, 8, 0, 4)
    assert f["avg@4"] == [0.25, 0.0, 0.5]
    assert {k: v[0] for k, v in f["pass@k"].items()} == pytest.approx({"1": 0.25, "2": 5 / 12, "4": 0.5})
    assert f["pass^k"]["2"][0] == pytest.approx(1 / 12)
    assert f["maj@k"]["4"][0] == pytest.approx(0.25)  # 1 1 2 2 is a tie: a half of the first problem
    tools = {name: value[0] for name, value in f["tools"].items()}
    assert tools == pytest.approx(
        {
            "calls": 7 / 8,
            "tool_productivity": 2 / 7,
            "code_ratio": 6 / 8,
            "code_in_correct": 1 / 2,
            "accuracy_with_code": 1 / 6,
            "accuracy_without_code": 1 / 2,
            "code_pass": 4 / 7,
            "code_pass_correct": 1.0,
            "code_pass_incorrect": 2 / 5,
            "calls_in_correct": 1.0,
            "response_tokens": 140 / 8,
            "response_tokens_correct": 15.0,
            "response_tokens_incorrect": 110 / 6,
            "model_tokens": 5.0,
            "truncated": 0.0,
        }
    )
    assert f["kinds"]["easy"]["avg@4"][0] == 0.5 and f["kinds"]["hard"]["code_ratio"][0] == 1.0


def test_a_model_that_never_calls_has_no_productivity():
    tools = figures([item(0, [1, 0], [0, 0])], 2)["tools"]
    assert tools["tool_productivity"] == tools["code_pass"] == [None, None, None] and tools["code_ratio"][0] == 0.0


def test_where_no_call_can_be_made_nothing_is_said_of_how_many_did():
    silent = [item(0, [1, 0], [0, 0], kind="a"), item(1, [1, 0], [0, 0], kind="b")]
    f = figures(silent, 2, without_calls={"python_tir"})
    assert f["tools"]["code_ratio"] == f["tools"]["code_in_correct"] == [None, None, None]
    assert f["tools"]["calls"][0] == 0.0 and f["kinds"]["a"]["code_ratio"] == [None, None, None]
    told = figures([item(0, [1, 0], [1, 0])], 2, without_calls={"python_tir"})
    assert told["tools"]["code_ratio"][0] == 0.5, "an agent told of it"


def test_a_problem_that_lost_samples_counts_where_it_has_enough():
    """The second has one valid sample of two: it has a say in avg@2 and pass@1, none in pass@2."""
    f = figures(
        [
            item(0, [1, 0], [0, 0]),
            item(1, [0], [0], failures={"timeout": 1}),
            item(2, [], [], failures={"engine_gone": 2}),
        ],
        2,
    )
    assert f["failed"] == 3 and f["avg@2"][0] == 0.25 and f["pass@k"]["2"][0] == 1.0
