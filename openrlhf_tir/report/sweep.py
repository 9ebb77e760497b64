"""Sweep: one set under several settings -> a plot: accuracy with its interval, and what the tools did meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from .style import LIGHT, Theme, legend_above, new_figure, png, themed

Swept = Sequence[tuple[float, Mapping[str, Any]]]
"""(value of what is swept, figures), in ascending order."""


def sweep_png(name: str, key: str, swept: Swept, theme: Theme = LIGHT) -> bytes:
    with themed(theme):
        return png(sweep_figure(name, key, swept, theme))


def sweep_figure(name: str, key: str, swept: Swept, theme: Theme) -> Figure:
    """Above avg@n, pass@n and maj@n; below code ratio, and calls on an axis of their own. Values stand at equal
    distances: 0, 2, 4, 20 are no scale."""
    figure, (scores, tools) = new_figure(6.0, rows=2)
    places = np.arange(len(swept))
    found = [f for _, f in swept]
    blue, orange, green, yellow = theme.series[:4]
    for label, colour, of in (
        ("avg@n", blue, lambda f: f[f"avg@{f['n']}"]),
        ("pass@n", orange, lambda f: f["pass@k"][str(f["n"])]),
        ("maj@n", green, lambda f: f["maj@k"][str(f["n"])]),
    ):
        _line(scores, places, [of(f) for f in found], label, colour)
    _line(tools, places, [f["tools"]["code_ratio"] for f in found], "code ratio", yellow)
    _line(tools, places, [f["tools"]["code_in_correct"] for f in found], "code in correct", green)
    tools.plot([], [], color=theme.muted, linestyle=":", marker="o", markersize=4, label="calls (right)")
    for axes, title in ((scores, f"{name}: accuracy"), (tools, f"{name}: tool use")):
        axes.set_title(title)
        axes.set_xticks(places, [f"{value:g}" for value, _ in swept])
        axes.set_xlabel(key)
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        legend_above(axes)
    calls = tools.twinx()
    calls.grid(False)
    calls.set_ylabel("calls per response")
    calls.plot(
        places,
        _column([f["tools"]["calls"] for f in found], 0),
        color=theme.muted,
        linestyle=":",
        marker="o",
        markersize=4,
    )
    calls.set_ylim(bottom=0)
    return figure


def _line(axes: Axes, places: np.ndarray, values: Sequence[Sequence[float | None]], label: str, colour: str) -> None:
    """A line with its interval; a gap where there is no figure."""
    axes.plot(places, _column(values, 0), color=colour, marker="o", markersize=4, label=label)
    axes.fill_between(places, _column(values, 1), _column(values, 2), color=colour, alpha=0.15, linewidth=0)


def _column(values: Sequence[Sequence[float | None]], i: int) -> np.ndarray:
    """[settings] float64, NaN for None."""
    return np.array([np.nan if v[i] is None else v[i] for v in values], float)
