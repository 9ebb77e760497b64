"""What the plots compute before they draw: smoothing, bars, concurrency, the window of the close-up."""

import numpy as np
import pytest

from openrlhf_tir.observability.report.curves import CURVES, MAX_BARS, binned, series, smooth, trained
from openrlhf_tir.observability.report.held_out import held_out
from openrlhf_tir.observability.report.style import plot_style
from openrlhf_tir.observability.report.timeline import decoding, middle
from openrlhf_tir.pipeline.observer import METRICS
from openrlhf_tir.telemetry.timeline import Span


def test_a_metric_that_no_step_has_is_no_series():
    assert series({"step": [1, 2], "ess": [None, None]}, "ess") is None
    assert series({"step": [1, 2]}, "ess") is None
    np.testing.assert_array_equal(series({"step": [1, 2], "ess": [None, 3]}, "ess"), [np.nan, 3.0])


def test_a_short_run_is_not_smoothed():
    values = np.arange(39.0)
    assert smooth(values) is values


def test_smoothing_is_a_centred_mean_that_skips_missing_values():
    values = np.zeros(40)
    values[[10, 11]] = 3.0, np.nan
    out = smooth(values)
    assert (
        out[9] == pytest.approx(3.0 / 3) and out[10] == pytest.approx(3.0 / 2) and np.isnan(out[11]) and out[12] == 0.0
    )


def test_bars_of_a_long_run_are_means_over_equal_stretches_and_the_rest():
    steps = np.arange(1.0, 2 * MAX_BARS + 2)  # one more than fits at two per bar: three per bar
    centres, heights, per = binned(steps, np.where(steps <= 3, 6.0, 0.0))
    assert per == 3 and len(centres) <= MAX_BARS
    assert (centres[0], heights[0], heights[1]) == (2.0, 6.0, 0.0)


def test_the_evaluation_before_step_one_is_no_learner_step():
    assert trained({"step": [0, 1], "step_s": [None, 2.0]}) == {"step": [1], "step_s": [2.0]}


def test_concurrency_is_the_mean_number_of_running_requests_per_slice():
    spans = [Span("engine/0", "decode", start, end) for start, end in ((3.5, 9.0), (1.0, 2.0), (0.0, 3.0))]
    # slices of one second: [0,1) one, [1,2) two, [2,3) one, [3,4) half a second of one
    np.testing.assert_allclose(decoding(spans, 0.0, 4.0, bins=4), [1.0, 2.0, 1.0, 0.5])


def test_the_close_up_shows_three_steps_from_the_middle():
    steps = [Span("learner", f"step {i}", 10.0 * i, 10.0 * i + 5) for i in range(1, 8)]
    start, end = middle(steps)  # steps 3, 4, 5: 30..55, with 8 % of 25 s on both sides
    assert (start, end) == (28.0, 57.0)


def test_there_is_no_close_up_of_three_steps_or_fewer():
    assert middle([Span("learner", f"step {i}", i, i + 1) for i in range(3)]) is None


def test_a_run_of_one_step_with_nothing_measured_draws_nothing_and_does_not_fail():
    with plot_style():
        assert [curve.draw({"step": [1], "time": [1.0]}) for curve in CURVES] == [None] * len(CURVES)


def test_the_time_of_a_step_has_every_phase_that_the_controller_measures():
    columns = {"step": [1]} | {name: [1.0] for name in METRICS.values()}
    with plot_style():
        (axes,) = next(c for c in CURVES if c.file == "step_time").draw(columns).axes
    assert sum(bar.get_height() for bar in axes.patches) == len(METRICS)


def test_parts_of_the_reward_that_change_are_drawn_each_by_its_name():
    columns = {"step": [1, 2], "reward/form": [0.1, 0.9], "reward/constant": [1.0, 1.0], "reward/late": [None, 1.0]}
    with plot_style():
        figure = next(c for c in CURVES if c.file == "parts").draw(columns)
    assert [ax.get_title("left") for ax in figure.axes if ax.get_title("left")] == ["form"]


def test_pass_at_k_has_a_panel_by_environment_only_where_environments_have_one():
    columns = {"step": [1], "eval/accuracy": [0.5], "eval/pass_at_2": [0.6], "eval/pass_hat_2": [0.4]}
    with plot_style():
        alone = held_out(columns)
        several = held_out(columns | {"eval/calc/pass_at_2": [0.5], "eval/guess/pass_at_2": [0.7]})
    assert len(alone.axes) == 1
    heights = {line.get_label().split()[0]: line.get_ydata()[0] for line in alone.axes[0].lines}
    assert (heights["pass^2"], heights["pass@2"]) == (0.4, 0.6)
    assert [line.get_label() for line in several.axes[1].lines] == ["calc", "guess"]
