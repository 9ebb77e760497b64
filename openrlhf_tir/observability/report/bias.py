"""Two figures of bias: whether the trained groups are a fair sample of the dispatched ones, and how off-policy they
are."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .curves import Columns, Plot, finish, line, series, whole_decades
from .style import COLORS, new_figure

PANELS = {
    "length": ("Length", "mean response tokens, up to"),
    "difficulty": ("Difficulty", "correct samples in %, up to"),
    "env": ("Environment", ""),
}
"""What groups are counted by -> (title of the panel, label of its axis)."""
STAGES = {"rolled": "rolled", "kept": "kept by the filters", "trained": "trained"}
"""Stage of a group -> its label."""


def selection(columns: Columns) -> Figure | None:
    """Draw the share of groups in each bin of length, difficulty and environment, at each stage."""
    counts = {property_name: _counts(columns, property_name) for property_name in PANELS}
    counts = {
        property_name: table
        for property_name, table in counts.items()
        if any(sum(row.values()) for row in table.values())
    }
    if not counts:
        return None
    figure, axes = new_figure(3.1, columns=len(counts))
    for ax, (property_name, table) in zip(axes, counts.items(), strict=True):
        _bars(ax, table)
        title, unit = PANELS[property_name]
        ax.set(title=title, xlabel=unit, ylim=(0, None))
        ax.set_xticks(range(len(table)), list(table))
    axes[0].set_ylabel("share of groups")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(STAGES))
    return figure


def _counts(columns: Columns, property_name: str) -> dict[str, dict[str, float]]:
    """Return bin -> stage -> groups of the whole run. Numeric bins come first, in order, then names."""
    table: dict[str, dict[str, float]] = {}
    for name, values in columns.items():
        parts = name.split("/")
        if len(parts) == 4 and parts[:2] == ["selection", property_name]:
            table.setdefault(parts[2], dict.fromkeys(STAGES, 0.0))[parts[3]] = sum(value or 0 for value in values)
    return dict(
        sorted(table.items(), key=lambda row: (not row[0].isdigit(), int(row[0]) if row[0].isdigit() else 0, row[0]))
    )


def _bars(ax: Axes, table: dict[str, dict[str, float]]) -> None:
    for position, (stage, label) in enumerate(STAGES.items()):
        values = np.array([row[stage] for row in table.values()])
        ax.bar(
            np.arange(len(table)) + 0.27 * (position - 1),
            values / max(values.sum(), 1.0),
            width=0.25,
            color=COLORS[position],
            label=label,
        )


def off_policy(columns: Columns) -> Figure | None:
    """Draw how far the learner's log-probs are from those that the engines sampled with."""
    figure, (left, middle, right) = new_figure(2.9, columns=3)
    drawn = [
        line(left, columns, "mismatch_mean_abs", "mean", COLORS[0]),
        line(left, columns, "mismatch_max", "max", COLORS[4]),
        line(middle, columns, "lag_mean_abs", "mean", COLORS[1]),
        line(right, columns, "lag_share", "lag", COLORS[1]),
        line(right, columns, "is_filtered", "filtered", COLORS[2]),
    ]
    if not any(drawn):
        return None
    measured = [series(columns, name) for name in ("mismatch_mean_abs", "mismatch_max")]
    values = np.concatenate([np.zeros(0), *(values[values > 0] for values in measured if values is not None)])
    if len(values):
        whole_decades(left, values)
    left.set(title="Mismatch", ylabel="|Δ log-prob|, nats")
    middle.set(title="Version lag", ylabel="mean |Δ log-prob|, nats", ylim=(0, None))
    right.set(title="Tokens", ylabel="share", ylim=(0, 1.02))
    return finish(figure, [left, middle, right])


BIAS_CURVES = (
    Plot(
        "selection",
        "Selection",
        "Groups rolled, kept by the filters, and trained. The filters change the mix on purpose;"
        " between kept and trained nothing may change.",
        selection,
    ),
    Plot(
        "off_policy",
        "Off-policy",
        "Learner against the policy that sampled: with the same weights (engine mismatch), with older ones; share that"
        " lags, and that the correction filtered.",
        off_policy,
    ),
)
