"""Curves over the learner steps: one figure for each question that a reader has about a run.

Every function takes the columns and returns a figure, or None if the run has none of its metrics. `CURVES` lists them
in the order of the report, with the file, the title and the sentence that says how to read it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ...telemetry.metrics import untrained
from .style import COLORS, MUTED, SURFACE, legend_above, new_figure, ticks_at_steps

MAX_BARS = 90
"""Bars of a figure. In a longer run a bar stands for several steps."""
Columns = dict[str, list]
"""Metric -> its value at each step; None where a step lacks it."""


def series(columns: Columns, name: str) -> np.ndarray | None:
    """Return a metric as [steps] float64, NaN where a step lacks it; None if no step has it."""
    if name not in columns:
        return None
    values = np.array([np.nan if value is None else value for value in columns[name]], float)
    return None if np.isnan(values).all() else values


def smooth(values: np.ndarray) -> np.ndarray:
    """Return the centred moving mean over 1/20 of the run, ignoring NaN. Fewer than 40 values are returned as they are.

    Args:
        values: [steps] float64.

    Returns:
        [steps] float64, NaN where the value is.
    """
    half = len(values) // 40
    if half == 0:
        return values
    kernel = np.ones(2 * half + 1)
    known = ~np.isnan(values)
    total = np.convolve(np.where(known, values, 0.0), kernel, "same")
    count = np.convolve(known, kernel, "same")
    return np.where(known, total / np.maximum(count, 1), np.nan)


def binned(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Return at most MAX_BARS bars. A missing value counts as 0.

    Args:
        steps: [steps] float64.
        values: [steps] float64.

    Returns:
        (centres [bins], mean per step [bins], steps per bar).
    """
    width = -(-len(steps) // MAX_BARS)
    starts = np.arange(0, len(steps), width)
    counts = np.diff(np.append(starts, len(steps)))
    return np.add.reduceat(steps, starts) / counts, np.add.reduceat(np.nan_to_num(values), starts) / counts, width


def trained(columns: Columns) -> Columns:
    """Return only the rows of learner steps: an evaluation of the base model before step 1 has a row, but no bar."""
    keep = [index for index, step in enumerate(columns.get("step", ())) if step > 0]
    return {name: [values[index] for index in keep] for name, values in columns.items()}


def accuracy(columns: Columns) -> Figure | None:
    """Draw accuracy and use of code, of training responses as lines and of held-out problems as markers."""
    figure, (axes,) = new_figure(3.4)
    blue, orange, green, yellow = COLORS[:4]
    drawn = [
        line(axes, columns, "accuracy", "accuracy", blue),
        line(axes, columns, "code_ratio", "code ratio", orange),
        line(axes, columns, "code_in_correct", "code in correct", green),
        _markers(axes, columns, "eval/accuracy", "o", blue),
        _markers(axes, columns, "eval/code_ratio", "o", orange),
        _markers(axes, columns, "eval/greedy_accuracy", "D", yellow),
    ]
    if not any(drawn):
        return None
    if drawn[3] or drawn[4]:  # One legend entry: the colours already distinguish the two.
        axes.plot([], [], "o", ms=6.5, mfc=SURFACE, mec=MUTED, mew=1.8, label="held-out")
    if drawn[5]:
        axes.plot([], [], "D", ms=5.5, mfc=SURFACE, mec=yellow, mew=1.8, label="held-out accuracy, greedy")
    title = "Accuracy and code use" if drawn[1] or drawn[2] or drawn[4] else "Accuracy"
    axes.set(ylim=(0, 1.02), title=title, ylabel="share of responses")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, 0))
    return finish(figure, [axes])


def reward(columns: Columns) -> Figure | None:
    """Draw the mean reward."""
    figure, (axes,) = new_figure(2.6)
    if not line(axes, columns, "reward_mean", "mean reward", COLORS[0]):
        return None
    axes.set(title="Reward", ylabel="mean over responses")
    return finish(figure, [axes])


def response(columns: Columns) -> Figure | None:
    """Draw the length of responses and their number of tool calls."""
    figure, (left, right) = new_figure(2.9, columns=2, width_ratios=(3, 2))
    drawn = [
        line(left, columns, "response_tokens_mean", "mean", COLORS[0]),
        line(left, columns, "response_tokens_p95", "95th percentile", COLORS[4]),
        line(right, columns, "calls_mean", "tool calls", COLORS[1]),
    ]
    if not any(drawn):
        return None
    left.set(title="Response length", ylabel="tokens", ylim=(0, None))
    right.set(title="Tool calls", ylabel="calls per response", ylim=(0, None))
    return finish(figure, [left, right])


def n_calls(columns: Columns) -> Figure | None:
    """Draw the share of responses by number of tool calls. None unless at least two numbers occur."""
    columns = trained(columns)
    shares = {
        name: name.partition("/")[2].replace("_up", " and more").replace("_", " to ")
        for name in columns
        if name.startswith("n_calls/") and (series(columns, name) is not None)
    }
    if sum(any(columns[name]) for name in shares) < 2:
        return None
    figure, (axes,) = new_figure(3.0)
    _stack(axes, columns, shares)
    axes.set(title="How often a response calls a tool", ylabel="share of responses", ylim=(0, 1.0))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, 0))
    return finish(figure, [axes])


def drops(columns: Columns) -> Figure | None:
    """Draw the groups that were dropped or failed, by reason, the most frequent first."""
    columns = trained(columns)
    reasons = untrained(columns)
    if not reasons:
        return None
    figure, (axes,) = new_figure(3.0)
    steps_per_bar = _stack(
        axes, columns, {name: name.replace("drops/", "").replace("failed/", "failed: ") for name in reasons}
    )
    axes.set(
        title="Groups dropped, by reason",
        ylabel="groups per step" + (f" (mean of {steps_per_bar})" if steps_per_bar > 1 else ""),
    )
    return finish(figure, [axes])


MAX_PARTS = 12
"""Panels of `parts_of_rewards`: a reward may record dozens of parts."""


def parts_of_rewards(columns: Columns) -> Figure | None:
    """Draw a panel for each part of the reward that is not constant."""
    measured = {name: series(columns, name) for name in sorted(columns) if name.startswith("reward/")}
    moving = [
        name
        for name, values in measured.items()
        if values is not None and np.nanmax(values) - np.nanmin(values) > 1e-12
    ]
    if not moving:
        return None
    moving = moving[:MAX_PARTS]
    figure, axes = _panels(len(moving), 2.0)
    for ax, name in zip(axes, moving, strict=True):
        line(ax, columns, name, name, COLORS[0], width=1.6)
        ax.set(title=name.removeprefix("reward/"))
    return finish(figure, axes)


def staleness(columns: Columns) -> Figure | None:
    """Draw the mean staleness of trained tokens and that of the oldest token of each batch."""
    figure, (axes,) = new_figure(2.6)
    mean, largest = series(columns, "staleness_mean"), series(columns, "staleness_max")
    shown = mean if largest is None else largest
    if shown is None:
        return None
    if largest is not None:
        axes.step(columns["step"], largest, where="mid", color=COLORS[1], lw=1.4, label="oldest token of the batch")
    line(axes, columns, "staleness_mean", "mean", COLORS[0])
    top = np.nanmax(shown)
    axes.set(title="Staleness of trained tokens", ylabel="policy versions", ylim=(-0.05, max(1.0, top) + 0.3))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return finish(figure, [axes])


def health(columns: Columns) -> Figure | None:
    """Draw a panel for each of the learner's health metrics that the run has."""
    panels = {
        "Entropy": (("entropy",), "nats per token"),
        "KL to the rollout policy": (("kl_rollout",), "nats per token"),
        "KL to the reference": (("kl_ref",), "nats per token"),
        "Gradient norm": (("grad_norm",), "before clipping"),
        "Clipping": (("clip_low", "clip_high"), "share of tokens"),
        "Proof of each push": (("canary_excess",), "above 1 it is refused"),
        "Effective sample size": (("ess",), "share of tokens"),
    }
    present = {
        title: panel for title, panel in panels.items() if any(series(columns, name) is not None for name in panel[0])
    }
    if not present:
        return None
    figure, axes = _panels(len(present), 2.3)
    for ax, (title, (names, unit)) in zip(axes, present.items(), strict=True):
        measured = [values for name in names if (values := series(columns, name)) is not None]
        for name, color in zip(names, COLORS[:2], strict=False):
            line(ax, columns, name, name.removeprefix("clip_"), color, width=1.6)
        ax.set(title=title, ylabel=unit)
        ax.set_ylim(bottom=min(0.0, *(float(np.nanmin(values)) for values in measured)))
    return finish(figure, axes)


def step_time(columns: Columns) -> Figure | None:
    """Draw the seconds of each step by phase."""
    columns = trained(columns)
    phases = {
        "replay_wait_s": ("wait for groups", COLORS[3]),
        "gate_wait_s": ("wait for staleness gate", COLORS[1]),
        "turn_s": ("wait for the GPUs", COLORS[7]),
        "accumulate_s": ("gradients of a batch's first groups", COLORS[6]),
        "step_s": ("learner step", COLORS[0]),
        "drain_s": ("drain", COLORS[5]),
        "push_s": ("weight push", COLORS[4]),
        "checkpoint_s": ("checkpoint", COLORS[2]),
        "evaluate_s": ("wait for an evaluation", MUTED),
    }
    measured = {name: series(columns, name) for name in phases}
    phases = {
        name: phase
        for name, phase in phases.items()
        if (seconds := measured[name]) is not None and np.nansum(seconds) > 0
    }
    if not phases:
        return None
    figure, (axes,) = new_figure(3.0)
    labels = {name: label for name, (label, _) in phases.items()}
    colors = {name: color for name, (_, color) in phases.items()}
    steps_per_bar = _stack(axes, columns, labels, colors)
    mean_note = f" (mean of {steps_per_bar})" if steps_per_bar > 1 else ""
    axes.set(title="Time per step", ylabel="seconds per step" + mean_note)
    return finish(figure, [axes])


def throughput(columns: Columns) -> Figure | None:
    """Draw trained tokens per second, and the groups that roll or wait to be trained."""
    figure, (left, right) = new_figure(2.9, columns=2)
    drawn = [
        line(left, columns, "tokens_per_s", "tokens", COLORS[2]),
        line(right, columns, "rolling", "rolling", COLORS[0]),
        line(right, columns, "buffered", "buffered", COLORS[3]),
    ]
    if not any(drawn):
        return None
    left.set(title="Throughput", ylabel="trained tokens per second", ylim=(0, None))
    right.set(title="Groups in flight", ylabel="groups", ylim=(0, None))
    return finish(figure, [left, right])


class Plot(NamedTuple):
    """A figure of the report that is not drawn yet.

    Attributes:
        file: Name of the figure's file, without its suffix.
        title: Heading of the figure.
        caption: How to read it.
        draw: Returns the figure, or None if the run has no data for it.
    """

    file: str
    title: str
    caption: str
    draw: Callable[[Columns], Figure | None]


CURVES = (
    Plot(
        "accuracy",
        "Accuracy and code use",
        "Lines are the sampled training responses of each step, before filters; markers are the held-out problems.",
        accuracy,
    ),
    Plot(
        "reward",
        "Reward",
        "Mean reward of the sampled training responses of each step, before filters.",
        reward,
    ),
    Plot(
        "parts",
        "Parts of the reward",
        "What the reward recorded by name, mean over responses; parts that never change are left out.",
        parts_of_rewards,
    ),
    Plot(
        "response",
        "Responses",
        "Length in tokens, model and tool output together, and how often a response calls the tool.",
        response,
    ),
    Plot(
        "n_calls",
        "Calls per response",
        "Share of the responses by how often they call a tool: a mean hides if all call a little or few a lot.",
        n_calls,
    ),
    Plot(
        "drops",
        "Dropped groups",
        "Groups that were sampled but not trained on."
        " A group whose answers are all right or all wrong teaches nothing.",
        drops,
    ),
    Plot(
        "staleness",
        "Staleness",
        "How many updates the learner was ahead of the weights that sampled a trained token. 0 is strictly on-policy.",
        staleness,
    ),
    Plot(
        "health",
        "Learner health",
        "Early signs of trouble: a collapsing entropy, a rising KL to the rollout policy,"
        " the proof of a push near what is refused.",
        health,
    ),
    Plot(
        "step_time",
        "Time per step",
        "What the trainer did with its wall-clock time. Waiting for groups means that rollout is the bottleneck.",
        step_time,
    ),
    Plot(
        "throughput",
        "Throughput and queues",
        "Trained completion tokens per second, and the groups being sampled or waiting to be trained.",
        throughput,
    ),
)


def line(axes: Axes, columns: Columns, name: str, label: str, color: str, width: float = 2.0) -> bool:
    """Draw one metric over the steps, smoothed, with the raw values faint behind it. Return True if the run has it."""
    values = series(columns, name)
    if values is None:
        return False
    known = ~np.isnan(values)
    steps, values = np.array(columns["step"], float)[known], values[known]
    smoothed = smooth(values)
    if smoothed is not values:
        axes.plot(steps, values, color=color, lw=0.8, alpha=0.28)
    axes.plot(steps, smoothed, color=color, lw=width, label=label, marker="o" if len(steps) == 1 else None)
    return True


def _markers(axes: Axes, columns: Columns, name: str, marker: str, color: str) -> bool:
    values = series(columns, name)
    if values is None:
        return False
    known = ~np.isnan(values)
    axes.plot(
        np.array(columns["step"])[known],
        values[known],
        marker,
        ms=5.5 if marker == "D" else 6.5,
        mfc=SURFACE,
        mec=color,
        mew=1.8,
        zorder=5,
        clip_on=False,
    )
    return True


def _panels(count: int, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure and `count` axes, at most three in a row; `height` is that of a row in inches."""
    columns = min(3, count)
    rows = -(-count // columns)
    figure, axes = new_figure(height * rows, columns=columns, rows=rows)
    for ax in axes[count:]:
        ax.set_axis_off()
    return figure, axes[:count]


def whole_decades(axes: Axes, values: np.ndarray) -> None:
    """Make an axis logarithmic, from the power of ten below the values, which are above 0, to that above them."""
    axes.set_yscale("log")
    axes.set_ylim(10.0 ** np.floor(np.log10(values.min())), 10.0 ** np.ceil(np.log10(values.max()) + 0.01))
    axes.minorticks_off()


def _stack(axes: Axes, columns: Columns, labels: dict[str, str], colors: dict[str, str] | None = None) -> int:
    """Draw stacked bars, one colour per metric, and return the steps per bar. From the ninth metric on they share a
    grey."""
    steps = np.array(columns["step"], float)
    steps_per_bar = 1
    bottom: np.ndarray | float = 0.0
    for number, (name, label) in enumerate(labels.items()):
        values = series(columns, name)
        if values is None:
            continue
        centres, heights, steps_per_bar = binned(steps, values)
        color = colors[name] if colors else (*COLORS, MUTED)[min(number, len(COLORS))]
        axes.bar(centres, heights, width=0.86 * steps_per_bar, bottom=bottom, color=color, label=label)
        bottom = bottom + heights
    axes.set_ylim(0, 1.05 * float(np.max(bottom)) or 1.0)
    return steps_per_bar


def finish(figure: Figure, axes: list[Axes]) -> Figure:
    """Apply what all figures over learner steps have in common, and return the figure."""
    for ax in axes:
        ax.set_xlabel("learner step")
        ax.margins(x=0.015)
        ticks_at_steps(ax)
        legend_above(ax)
    return figure
