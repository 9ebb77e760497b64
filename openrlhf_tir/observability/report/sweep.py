"""A plot of one evaluation set under several values of a setting: accuracy with its interval, and use of the tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from .style import COLORS, MUTED, legend_above, new_figure, plot_style, png

Swept = Sequence[tuple[float, Mapping[str, Any]]]
"""(value of the setting, figures of the evaluation), in ascending order of the value."""


def sweep_png(name: str, key: str, swept: Swept) -> bytes:
    """Return the figure of `sweep_figure` as a PNG file."""
    with plot_style():
        return png(sweep_figure(name, key, swept))


def sweep_figure(name: str, key: str, swept: Swept) -> Figure:
    """Draw avg@n, pass@n and maj@n above; below the code ratio, and the calls on an axis of their own.

    Values stand at equal distances, because values such as 0, 2, 4, 20 form no scale.

    Args:
        name: Name of the evaluation set.
        key: The setting whose values are compared.
        swept: The values and their figures.
    """
    figure, (scores, tools) = new_figure(6.0, rows=2)
    positions = np.arange(len(swept))
    figures = [values for _, values in swept]
    blue, orange, green, yellow = COLORS[:4]
    for label, color, read in (
        ("avg@n", blue, lambda values: values[f"avg@{values['n']}"]),
        ("pass@n", orange, lambda values: values["pass@k"][str(values["n"])]),
        ("maj@n", green, lambda values: values["maj@k"][str(values["n"])]),
    ):
        _line(scores, positions, [read(values) for values in figures], label, color)
    _line(tools, positions, [values["tools"]["code_ratio"] for values in figures], "code ratio", yellow)
    _line(tools, positions, [values["tools"]["code_in_correct"] for values in figures], "code in correct", green)
    tools.plot([], [], color=MUTED, linestyle=":", marker="o", markersize=4, label="calls (right)")
    for axes, title in ((scores, f"{name}: accuracy"), (tools, f"{name}: tool use")):
        axes.set_title(title)
        axes.set_xticks(positions, [f"{value:g}" for value, _ in swept])
        axes.set_xlabel(key)
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        legend_above(axes)
    calls = tools.twinx()
    calls.grid(False)
    calls.set_ylabel("calls per response")
    calls.plot(
        positions,
        _column([values["tools"]["calls"] for values in figures], 0),
        color=MUTED,
        linestyle=":",
        marker="o",
        markersize=4,
    )
    calls.set_ylim(bottom=0)
    return figure


def _line(axes: Axes, positions: np.ndarray, values: Sequence[Sequence[float | None]], label: str, color: str) -> None:
    """Draw a line with its interval, with a gap where there is no value."""
    axes.plot(positions, _column(values, 0), color=color, marker="o", markersize=4, label=label)
    axes.fill_between(positions, _column(values, 1), _column(values, 2), color=color, alpha=0.15, linewidth=0)


def _column(values: Sequence[Sequence[float | None]], index: int) -> np.ndarray:
    """Return one element of each (value, low, high): [settings] float64, NaN for None."""
    return np.array([np.nan if value[index] is None else value[index] for value in values], float)
