"""The columns of a run's metrics.jsonl -> the figures of an arm, and the points of its curves.

    Columns     metric -> its values, one for each line of the file; None where the line does not have it
    points      -> (step, value) of the steps that have a metric
    Measure     Columns -> one figure; None where the run has no such metric

Held-out figures are those of the evaluations before the first update ("before") and after the last one. Where one of
them failed there is no such figure: that of another update does not take its place. What is only known of the sampled
responses of training is a mean over the last `LAST` updates ("at the end").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate, pairwise
from statistics import correlation, fmean

Columns = Mapping[str, list]
Points = list[tuple[float, float]]
Curves = dict[str, Points]
Measure = Callable[[Columns], float | None]
LAST = 4
"""Updates over which a figure of sampled responses is a mean."""
SPAN = 6
"""Updates over which the curve of groups rolled for each trained one is a mean."""
GOAL = 0.5
"""Held-out accuracy that `updates_to_half` counts the updates to."""
GOAL_OF_TIME = 0.6
"""Accuracy of sampled responses up to which `seconds_to_60` counts."""
SMOOTHED = 3
"""Updates over which that accuracy is a mean: the accuracy of a single update is good to 0.05."""


def points(columns: Columns, name: str) -> Points:
    """Return (step, value) of the steps that have a metric."""
    pairs = zip(columns.get("step", []), columns.get(name, []), strict=False)
    return [(step, value) for step, value in pairs if value is not None]


def _values(columns: Columns, name: str) -> list[float]:
    return [value for _, value in points(columns, name)]


def _last_step(columns: Columns) -> int:
    return max(columns.get("step", []), default=-1)


def _mean(values: list[float]) -> float | None:
    return fmean(values) if values else None


# --- Figures of one metric --------------------------------------------------------------------------------------------


def first(name: str) -> Measure:
    """Return the measure of a metric before the first update."""
    return lambda columns: dict(points(columns, name)).get(0)


def last(name: str) -> Measure:
    """Return the measure of a metric after the last update."""
    return lambda columns: dict(points(columns, name)).get(_last_step(columns))


def mean(name: str) -> Measure:
    """Return the measure of a metric's mean over the whole run."""
    return lambda columns: _mean(_values(columns, name))


def at_the_beginning(name: str) -> Measure:
    """Return the measure of a metric in the first update that has it."""
    return lambda columns: _mean(_values(columns, name)[:1])


def at_the_end(name: str) -> Measure:
    """Return the measure of a metric's mean over the last `LAST` updates."""
    return lambda columns: _mean(_values(columns, name)[-LAST:])


def halfway(name: str) -> Measure:
    """Return the measure of a metric's mean over the `LAST` updates before half of the run."""

    def measure(columns: Columns) -> float | None:
        values = _values(columns, name)
        return _mean(values[: len(values) // 2][-LAST:])

    return measure


# --- Figures of the evaluations ---------------------------------------------------------------------------------------


def productivity(columns: Columns) -> float | None:
    """Return the right held-out responses for each call after the last update; None without a call."""
    accuracy = last("eval/accuracy")(columns)
    calls = last("eval/calls")(columns)
    return accuracy / calls if accuracy is not None and calls else None


def updates_to_half(columns: Columns) -> float | None:
    """Return the update at which the held-out accuracy reaches GOAL, on the straight line between two evaluations.

    A run that does not reach it counts with its last evaluation, which is a lower bound.
    """
    evaluations = points(columns, "eval/accuracy")
    if not evaluations:
        return None
    first_step, first_accuracy = evaluations[0]
    if first_accuracy >= GOAL:
        return first_step
    for (step, accuracy), (next_step, next_accuracy) in pairwise(evaluations):
        if next_accuracy >= GOAL:
            return step + (next_step - step) * (GOAL - accuracy) / (next_accuracy - accuracy)
    return evaluations[-1][0]


def reached_half(columns: Columns) -> float | None:
    """Return 1.0 if the held-out accuracy reaches GOAL, else 0.0: then `updates_to_half` is only a lower bound."""
    return _reached(points(columns, "eval/accuracy"), GOAL)


def _reached(curve: Points, goal: float) -> float | None:
    return float(any(value >= goal for _, value in curve)) if curve else None


def together(columns: Columns) -> float | None:
    """Return the correlation (Pearson) of held-out accuracy and code ratio over the evaluations.

    None where one of them is constant, or for fewer than three evaluations.
    """
    accuracy_at = dict(points(columns, "eval/accuracy"))
    code_ratio_at = dict(points(columns, "eval/code_ratio"))
    steps = [step for step in accuracy_at if step in code_ratio_at]
    accuracies = [accuracy_at[step] for step in steps]
    code_ratios = [code_ratio_at[step] for step in steps]
    if len(steps) < 3 or len({*accuracies}) == 1 or len({*code_ratios}) == 1:
        return None
    return correlation(accuracies, code_ratios)


# --- Groups rolled for each that was trained --------------------------------------------------------------------------


def groups_at(columns: Columns, stage: str) -> Points:
    """Return (step, groups that came to a stage in it) of each update.

    Args:
        columns: The run's metrics, with the counts by difficulty of pipeline/bias_meter.py.
        stage: "rolled" or "trained".
    """
    names = [name for name in columns if name.startswith("selection/difficulty/") and name.endswith(f"/{stage}")]
    steps = enumerate(columns.get("step", []))
    return [(step, sum(columns[name][line] or 0.0 for name in names)) for line, step in steps if step]


def rolled_per_trained(columns: Columns) -> float | None:
    """Return the groups rolled for each trained one over the last third of the updates; None if none was trained."""
    start = 2 * _last_step(columns) / 3
    rolled = sum(groups for step, groups in groups_at(columns, "rolled") if step > start)
    trained = sum(groups for step, groups in groups_at(columns, "trained") if step > start)
    return rolled / trained if trained else None


def lately_rolled_per_trained(columns: Columns) -> Points:
    """Return (step, groups rolled for each trained one over the last SPAN updates) where one was trained."""
    rolled = groups_at(columns, "rolled")
    trained = groups_at(columns, "trained")
    curve = []
    for end, (step, _) in enumerate(rolled, 1):
        lately = slice(max(0, end - SPAN), end)
        trained_lately = sum(groups for _, groups in trained[lately])
        if trained_lately:
            curve.append((step, sum(groups for _, groups in rolled[lately]) / trained_lately))
    return curve


# --- Time to accuracy -------------------------------------------------------------------------------------------------


def _accuracy_over_time(columns: Columns) -> Points:
    """Return (seconds of training so far, mean accuracy of the samples of the last SMOOTHED updates) of each update."""
    pairs = zip(columns.get("wall_s", ()), columns.get("accuracy", ()), strict=False)
    updates = [(wall_s, accuracy) for wall_s, accuracy in pairs if wall_s is not None and accuracy is not None]
    seconds = list(accumulate(wall_s for wall_s, _ in updates))
    return [
        (seconds[end - 1], fmean(accuracy for _, accuracy in updates[end - SMOOTHED : end]))
        for end in range(SMOOTHED, len(updates) + 1)
    ]


def seconds_to_60(columns: Columns) -> float | None:
    """Return the seconds of training until the sampled accuracy reaches GOAL_OF_TIME.

    A run that does not reach it counts with its whole duration, which is a lower bound.
    """
    curve = _accuracy_over_time(columns)
    duration = curve[-1][0] if curve else None
    return next((seconds for seconds, accuracy in curve if accuracy >= GOAL_OF_TIME), duration)


def reached_60(columns: Columns) -> float | None:
    """Return 1.0 if the run reached GOAL_OF_TIME, else 0.0: then `seconds_to_60` is only a lower bound."""
    return _reached(_accuracy_over_time(columns), GOAL_OF_TIME)


MEASURES: dict[str, Measure] = {
    "accuracy_before": first("eval/accuracy"),
    "accuracy": last("eval/accuracy"),
    "greedy_accuracy": last("eval/greedy_accuracy"),
    "code_ratio_before": first("eval/code_ratio"),
    "code_ratio": last("eval/code_ratio"),
    "together": together,
    "calls_before": at_the_beginning("calls_mean"),
    "calls": last("eval/calls"),
    "productivity": productivity,
    "pass_correct": mean("code_pass_correct"),
    "pass_incorrect": mean("code_pass_incorrect"),
    "format_before": at_the_beginning("reward/format_ok"),
    "format": at_the_end("reward/format_ok"),
    "format_halfway": halfway("reward/format_ok"),
    "pass_before": at_the_beginning("reward/code_ok"),
    "pass": at_the_end("reward/code_ok"),
    "pass_halfway": halfway("reward/code_ok"),
    "viewed_before": first("eval/reward/viewed_first"),
    "viewed": last("eval/reward/viewed_first"),
    "updates_to_half": updates_to_half,
    "reached_half": reached_half,
    "rolled_per_trained": rolled_per_trained,
    "seconds_to_60": seconds_to_60,
    "reached_60": reached_60,
    "seconds_per_update": mean("wall_s"),
}
"""Name of a figure -> how it is measured."""
USUAL = ("accuracy_before", "accuracy", "greedy_accuracy", "code_ratio_before", "code_ratio")
OF_CALLS = ("eval/calls", "code_pass_correct", "code_pass_incorrect", "reward/code_ok")
CURVES = ("eval/accuracy", "eval/code_ratio", "eval/reward/viewed_first", *OF_CALLS, "reward/format_ok")


def curves_of(columns: Columns) -> Curves:
    """Return the curves of a run that have points."""
    curves = {name: points(columns, name) for name in CURVES}
    curves["rolled per trained"] = lately_rolled_per_trained(columns)
    return {name: curve for name, curve in curves.items() if curve}
