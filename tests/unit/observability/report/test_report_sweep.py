"""The plot of a sweep shows every value with its interval, and leaves gaps where there is no figure."""

from __future__ import annotations

import numpy as np
import pytest

from openrlhf_tir.observability.report.sweep import sweep_figure, sweep_png


def figures(accuracy: float, calls: float) -> dict:
    one = [accuracy, accuracy - 0.1, accuracy + 0.1]
    none = [None, None, None]
    tools = {"calls": [calls, calls, calls], "code_ratio": one, "code_in_correct": one if calls else none}
    return {"n": 4, "avg@4": one, "pass@k": {"4": one}, "maj@k": {"4": one}, "tools": tools}


SWEPT = [(0.0, figures(0.2, 0.0)), (2.0, figures(0.5, 1.0)), (20.0, figures(0.8, 2.5))]


def test_the_lines_are_the_figures_and_the_ticks_the_values():
    scores, tools, calls = sweep_figure("aime24", "env.max_calls", SWEPT).axes
    lines = {line.get_label(): line.get_ydata() for line in scores.get_lines()}
    assert {name: list(values) for name, values in lines.items()} == {
        name: [0.2, 0.5, 0.8] for name in ("avg@n", "pass@n", "maj@n")
    }
    assert [label.get_text() for label in scores.get_xticklabels()] == [
        "0",
        "2",
        "20",
    ] and scores.get_xlabel() == "env.max_calls"
    gap = next(line for line in tools.get_lines() if line.get_label() == "code in correct").get_ydata()
    assert (
        np.isnan(gap[0]) and list(gap[1:]) == [0.5, 0.8] and list(calls.get_lines()[0].get_ydata()) == [0.0, 1.0, 2.5]
    )


@pytest.mark.slow
def test_the_plot_is_a_png():
    assert sweep_png("aime24", "env.max_calls", SWEPT).startswith(b"\x89PNG")
