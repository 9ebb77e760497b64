"""The selection-bias meter, by hand; and its figure."""

from __future__ import annotations

from collections import Counter

import pytest

from openrlhf_tir.pipeline.bias_meter import SelectionMeter, difficulty_bin, length_bin
from openrlhf_tir.types import KEEP, GroupKey, GroupMeta


def meta(tokens: int, correct: list[bool], env: str = "python_tir") -> GroupMeta:
    n = len(correct)
    return GroupMeta(
        GroupKey(0, 0), KEEP, list(range(n)), [0.0] * n, correct, [False] * n, [tokens] * n, [tokens] * n, 5, 0, env=env
    )


def test_bins_are_powers_of_two_and_quarters():
    assert [length_bin([n]) for n in (1, 2, 3, 64, 65)] == ["1", "2", "4", "64", "128"]
    assert length_bin([10, 100]) == "64"  # the mean, 55
    assert [difficulty_bin([True] * c + [False] * (8 - c)) for c in (0, 1, 2, 3, 8)] == ["0", "25", "25", "50", "100"]
    assert length_bin([]) == difficulty_bin([]) == "unknown"


def test_a_group_is_counted_where_it_ends_and_one_that_comes_again_is_not():
    meter = SelectionMeter()
    meter.ended("buffered", meta(10, [True, False]))
    meter.ended("filtered", meta(10, [True, True]))
    meter.ended("failed", None)
    meter.ended("requeued", None)
    row = {name: n for name, n in meter.row().items() if name.startswith("selection/length")}
    assert row == {"selection/length/16/kept": 1, "selection/length/16/rolled": 2, "selection/length/unknown/rolled": 1}
    assert meter.row() == {}


def test_a_group_that_was_kept_and_is_issued_again_as_surplus_is_taken_back_and_counts_when_it_ends():
    """Over all rows: one rolled, one kept, one trained, in the bin of the answer that was trained."""
    meter, first, second = SelectionMeter(), meta(10, [True, False]), meta(60, [True, False])
    meter.ended("buffered", first)
    rows = [meter.row()]
    meter.left("requeued", first)
    meter.ended("buffered", second)
    meter.trained([second])
    rows.append(meter.row())
    total = Counter(
        {
            name: sum(row.get(name, 0) for row in rows)
            for name in rows[0] | rows[1]
            if name.startswith("selection/length")
        }
    )
    assert +total == {f"selection/length/64/{stage}": 1 for stage in ("rolled", "kept", "trained")}
    assert rows[1]["selection_bias/length"] == 0.0


def test_a_group_whose_step_changed_nothing_was_rolled_once_and_kept_and_is_not_trained():
    meter, group = SelectionMeter(), meta(10, [True, False])
    meter.ended("buffered", group)
    meter.left("failed", group)
    assert {n: v for n, v in meter.row().items() if "/length/" in n} == {
        "selection/length/16/kept": 1,
        "selection/length/16/rolled": 1,
    }


def test_the_distance_is_zero_when_all_that_was_kept_is_trained_and_grows_when_long_groups_are_left_out():
    """Kept: two short, two long. Trained: both short, one long: 1/2 (|1/2 - 2/3| + |1/2 - 1/3|) = 1/6; with the other
    long one: 0."""
    meter, short, long = SelectionMeter(), meta(10, [True]), meta(1000, [True])
    for m in (short, short, long, long):
        meter.ended("buffered", m)
    meter.trained([short, short, long])
    assert meter.row()["selection_bias/length"] == pytest.approx(1 / 6)
    meter.trained([long])
    assert meter.row()["selection_bias/length"] == 0.0


def test_the_figure_has_a_panel_per_question_and_its_bins_in_order():
    from openrlhf_tir.observability.report.bias import selection
    from openrlhf_tir.observability.report.style import plot_style

    columns = {"step": [1, 2]}
    for name, values in {
        "length/128/kept": [1, 2],
        "length/64/kept": [3, None],
        "length/unknown/rolled": [1, 1],
        "env/echo/trained": [2, 2],
    }.items():
        columns[f"selection/{name}"] = values
    with plot_style():
        figure = selection(columns)
    length, env = figure.axes
    assert [t.get_text() for t in length.get_xticklabels()] == ["64", "128", "unknown"]
    kept = [bar.get_height() for bar in length.containers[1]]
    assert kept == [0.5, 0.5, 0.0]
    assert [t.get_text() for t in env.get_xticklabels()] == ["echo"]


def test_a_run_without_the_meter_has_no_figure():
    from openrlhf_tir.observability.report.bias import off_policy, selection

    assert selection({"step": [1]}) is None and off_policy({"step": [1]}) is None


def test_a_bias_within_one_environment_shows_though_the_mix_hides_it():
    """Long ones of a are kept and not trained, short ones of b likewise: over both, lengths agree."""
    meter = SelectionMeter(("a", "b"))
    for env, trained in ("a", 10), ("b", 100):
        for tokens in (10, 100):
            meter.ended("buffered", meta(tokens, [True, False], env))
        meter.trained([meta(trained, [True, False], env)])
    row = meter.row()
    assert row["selection_bias/length"] == 0.0
    assert (
        row["env/a/selection_bias/length"] == row["env/b/selection_bias/length"] == 0.5
        and row["env/a/selection_bias/difficulty"] == 0.0
    )
    assert not any(name.startswith("env/") for name in SelectionMeter().row())
