"""Figures of an arm from the columns of its metrics, by hand."""

from __future__ import annotations

import pytest

from miniatures.reproduce import measures
from miniatures.reproduce.arms import swept_figures
from miniatures.reproduce.measures import MEASURES

COLUMNS = {
    "step": [0, 1, 2, 3, 4, 5],
    "eval/accuracy": [0.2, None, 0.4, None, 0.6, 0.9],
    "eval/code_ratio": [0.1, None, 0.4, None, 0.7, 0.8],
    "eval/calls": [None, None, 2.0, None, None, 1.5],
    "eval/greedy_accuracy": [None, None, None, None, 0.9, None],
    "calls_mean": [None, 1.8, 1.6, 1.4, 1.2, 1.0],
    "eval/reward/viewed_first": [0.25, None, 0.5, None, None, 0.875],
    "code_pass_correct": [None, 1.0, None, 0.5, None, None],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("accuracy_before", 0.2),
        ("accuracy", 0.9),
        ("calls_before", 1.8),
        ("calls", 1.5),
        ("productivity", 0.9 / 1.5),
        ("updates_to_half", 3.0),
        ("pass_correct", 0.75),
        ("pass_incorrect", None),
        ("greedy_accuracy", None),  # known of another update only
        ("reached_half", 1.0),
        ("viewed_before", 0.25),
        ("viewed", 0.875),
    ],
)
def test_a_figure(name, value):
    assert MEASURES[name](COLUMNS) == (None if value is None else pytest.approx(value))


def test_an_evaluation_that_failed_has_no_figure_and_that_of_another_update_does_not_take_its_place():
    columns = {"step": [0, 1, 2, 3], "eval/accuracy": [None, 0.5, 0.6, None], "eval/calls": [None, 1.5, 1.4, 1.3]}
    assert (
        all(MEASURES[name](columns) is None for name in ("accuracy_before", "accuracy", "productivity"))
        and MEASURES["calls"](columns) == 1.3
    )


def test_at_the_end_is_the_mean_of_the_last_updates():
    assert measures.at_the_end("calls_mean")(COLUMNS) == pytest.approx((1.6 + 1.4 + 1.2 + 1.0) / 4)


def test_two_curves_that_rise_in_step_correlate_fully_and_opposite_ones_the_other_way():
    steps = {"step": [0, 1, 2]}
    assert measures.together(
        {**steps, "eval/accuracy": [0.1, 0.2, 0.3], "eval/code_ratio": [0.2, 0.4, 0.6]}
    ) == pytest.approx(1.0)
    assert measures.together(
        {**steps, "eval/accuracy": [0.1, 0.2, 0.3], "eval/code_ratio": [0.6, 0.4, 0.2]}
    ) == pytest.approx(-1.0)
    assert measures.together({**steps, "eval/accuracy": [0.1, 0.2, 0.3], "eval/code_ratio": [0.4, 0.4, 0.4]}) is None, (
        "one that never changes"
    )


def test_a_half_that_is_never_reached_took_longer_than_the_run_and_one_that_was_there_took_nothing():
    steps = {"step": [0, 4, 8]}
    never = {**steps, "eval/accuracy": [0.1, 0.2, 0.3]}
    assert measures.updates_to_half(never) == 8 and measures.reached_half(never) == 0.0
    assert measures.updates_to_half({**steps, "eval/accuracy": [0.6, 0.4, 0.7]}) == 0
    assert measures.updates_to_half({**steps, "eval/accuracy": [0.1, 0.4, 0.8]}) == pytest.approx(5.0)


def test_an_empty_run_has_no_figures():
    assert all(measure({}) is None for measure in MEASURES.values()) and measures.curves_of({}) == {}


def test_a_sweep_has_its_accuracy_and_calls_by_n():
    suite = {
        "0": {"n": 4, "avg@4": [0.1, 0.0, 0.2], "tools": {"calls": [0.0, 0, 0]}},
        "20": {"n": 4, "avg@4": [0.9, 0.8, 1.0], "tools": {"calls": [2.5, 2, 3]}},
    }
    read = swept_figures(suite, (0, 20))
    assert read.figures == {"accuracy_0": 0.1, "accuracy_20": 0.9, "calls_0": 0.0, "calls_20": 2.5}
    assert read.curves["accuracy by N"] == [(0, 0.1), (20, 0.9)]


def groups(rolled: list, trained: list) -> dict[str, list]:
    """The columns of steps 0, 1, ...; a third of what was rolled in another bin."""
    return {
        "step": list(range(len(rolled))),
        "selection/difficulty/100/rolled": [n and n - n // 3 for n in rolled],
        "selection/difficulty/50/rolled": [n and n // 3 for n in rolled],
        "selection/difficulty/50/trained": trained,
        "selection/length/64/rolled": [1000] * len(rolled),
    }


def test_of_what_was_rolled_for_a_trained_group_only_the_last_third_counts_and_each_group_once():
    columns = groups([None, 90, 90, 90, 90, 32, 32], [None, *[16] * 6])
    assert MEASURES["rolled_per_trained"](columns) == 2.0


def test_the_curve_of_what_a_trained_group_cost_is_over_the_last_six_updates():
    columns = groups([None, 500, 90, 90, 90, 90, 32, 32], [None, *[16] * 7])
    curve = measures.curves_of(columns)["rolled per trained"]
    assert curve[0] == (1, 500 / 16) and curve[-1] == (7, (4 * 90 + 2 * 32) / (6 * 16))


def test_a_group_that_is_taken_back_is_not_counted_twice():
    columns = {
        "step": [4, 5, 6],
        "selection/difficulty/50/rolled": [90, 48, -16],
        "selection/difficulty/50/trained": [16, 16, None],
    }
    assert MEASURES["rolled_per_trained"](columns) == 2.0


def test_a_run_that_trained_nothing_has_no_such_figure():
    assert MEASURES["rolled_per_trained"](groups([None, 30], [None, 0])) is None
