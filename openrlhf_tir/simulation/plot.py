"""Draw a simulated run: where the time of each step goes, which groups are under way, how busy the machines are, and
how old the trained tokens are."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ..observability.report.style import COLORS, legend_above, new_figure, plot_style
from .run import Result
from .table import ages

PHASES_SHOWN = ("accumulate", "step", "push", "drain", "wait for gate", "wait for groups")


def plot(result: Result, title: str, engines: int, saturated_tokens_per_s: float) -> Figure:
    """Return the figure of a run.

    Args:
        result: The run.
        title: Its name.
        engines: Number of engines.
        saturated_tokens_per_s: The most that all engines together decode in a second.
    """
    rows = {name: np.array(values) for name, values in result.rows.items()}
    steps = np.arange(1, len(rows["time"]) + 1)
    seconds = np.maximum(per_step(rows["time"]), 1e-9)
    with plot_style():
        figure, (spent, flight, busy, age) = new_figure(5.6, columns=2, rows=2)
        figure.suptitle(f"Simulated: {title}", x=0.01, ha="left", fontsize=11, weight="bold")
        base = np.zeros(len(steps))
        for name, colour in zip(PHASES_SHOWN, COLORS, strict=False):
            part = per_step(rows[f"{name}_s"])
            spent.bar(steps, part, 1.0, bottom=base, color=colour, label=name)
            base += part
        spent.set(title="seconds per step", xlabel="step")
        spent.legend(loc="upper right", ncols=2)
        flight.plot(steps, rows["rolling"], color=COLORS[0], label="rolling")
        flight.plot(steps, rows["buffered"], color=COLORS[1], label="buffered")
        flight.set(title="groups", xlabel="step", ylim=(0, None))
        legend_above(flight)
        busy.plot(
            steps,
            per_step(rows["engine_tokens"]) / seconds / saturated_tokens_per_s,
            color=COLORS[0],
            label="decode rate used",
        )
        busy.plot(steps, per_step(rows["engine_busy_s"]) / seconds / engines, color=COLORS[2], label="engines")
        busy.plot(steps, per_step(rows["learner_busy_s"]) / seconds, color=COLORS[1], label="learner")
        busy.set(title="busy", xlabel="step", ylim=(0, 1.05))
        busy.yaxis.set_major_formatter(PercentFormatter(1.0))
        legend_above(busy)
        shares = ages(result)
        age.bar(list(shares), list(shares.values()), color=COLORS[0])
        age.set(title="age of trained tokens", xlabel="versions", xticks=list(shares))
        age.yaxis.set_major_formatter(PercentFormatter(1.0))
    return figure


def per_step(total: np.ndarray) -> np.ndarray:
    """Return the increments of a running total, [steps]."""
    return np.diff(total, prepend=0.0)
