"""The bars of where an update's time goes: one for the learner, one for the engines."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from .curves import Columns, Plot
from .cycle import cycle_of
from .style import COLORS, MUTED, SURFACE, legend_above, new_figure

Parts = dict[str, tuple[int, tuple[str, ...]]]
"""Part of a bar -> index of its colour in `COLORS`, 8 being MUTED, and the parts of the time in it."""
LEARNER_BAR: Parts = {
    "wait": (3, ("wait_for_groups", "wait_for_gate", "drain", "turn", "evaluation")),
    "passes": (0, ("passes",)),
    "further passes": (6, ("scoring",)),
    "optimizer": (2, ("optimizer",)),
    "rest of step": (7, ("step_rest",)),
    "push": (4, ("push_write", "push_load", "push_read_back", "push_pause_rest", "push_rest")),
    "proof": (5, ("proof",)),
    "checkpoint": (1, ("checkpoint",)),
    "other": (8, ("other",)),
}
ENGINE_BAR: Parts = {
    "decoding": (0, ("decode",)),
    "prompts": (2, ("prefill",)),
    "environments": (1, ("env_wait",)),
    "no work": (8, ("idle",)),
    "paused": (4, ("paused",)),
}
WIDE_ENOUGH = 0.06
"""Least share of a bar that has room for its percentage."""
SHOWN = 0.005
"""Least share that has a colour and a name in the bar; the table has them all."""


def bars(columns: Columns) -> Figure | None:
    """Draw an update as one bar for the learner, and one for the engines if they measured their time."""
    cycle = cycle_of(columns)
    if cycle is None:
        return None
    shares = {name: seconds / cycle.wall_s for name, seconds in cycle.learner_s.items()}
    drawn = {f"Learner: an update takes {cycle.wall_s:.1f} s": (LEARNER_BAR, shares)}
    if cycle.engine_share:
        drawn["Engines meanwhile"] = (ENGINE_BAR, cycle.engine_share)
    figure, axes = new_figure(1.35 * len(drawn), rows=len(drawn))
    for ax, (title, (parts, shares_of_parts)) in zip(axes, drawn.items(), strict=True):
        left = 0.0
        for label, (color, names) in parts.items():
            share = sum(shares_of_parts.get(name, 0.0) for name in names)
            if share < SHOWN:
                continue
            ax.barh(0, share, left=left, color=(*COLORS, MUTED)[color], label=label, height=0.7)
            if share >= WIDE_ENOUGH:
                ax.text(left + share / 2, 0, f"{share:.0%}", ha="center", va="center", color=SURFACE)
            left += share
        ax.set(title=title, xlim=(0, 1), ylim=(-0.45, 0.45))
        ax.set_yticks([])
        ax.grid(False)
        ax.xaxis.set_major_formatter(PercentFormatter(1.0, 0))
        legend_above(ax, own_line=True)
    return figure


CYCLE_CURVES = (
    Plot(
        "cycle",
        "Where an update's time goes",
        "The mean of the middle half of the updates. The table below the curves has every part.",
        bars,
    ),
)
