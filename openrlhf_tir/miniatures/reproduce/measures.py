"""Measures: the columns of a run's metrics.jsonl -> figures of an arm and the points of its curves.

A figure is a number or None, where the run has no such metric. "before" is the base model's, "at the end" the mean of
the last LAST updates for what is only known of the sampled training responses; held-out figures are those of the
evaluations before the first update and after the last one: where one of them failed there is no such figure, and none
of another update takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

Columns = Mapping[str, list]
Curves = dict[str, list[tuple[float, float]]]
Measure = Callable[[Columns], float | None]
LAST, SPAN = 4, 6
GOAL = 0.5
"""Held-out accuracy that `updates_to_half` counts the updates to."""
GOAL_OF_TIME = 0.6
"""Accuracy of sampled responses up to which `seconds_to_60` counts."""
SMOOTHED = 3
"""Updates over which that accuracy is a mean: the accuracy of a single update is good to 0.05."""


def points(columns: Columns, name: str) -> list[tuple[float, float]]:
    """(step, value) of the steps that have the metric."""
    values = columns.get(name, [])
    return [(step, value) for step, value in zip(columns.get("step", []), values, strict=False) if value is not None]


def first(name: str) -> Measure:
    """Before the first update; None where it was not measured then."""
    return lambda columns: dict(points(columns, name)).get(0)


def last(name: str) -> Measure:
    """After the last update; None where it was not measured then."""
    return lambda columns: dict(points(columns, name)).get(_end(columns))


def _end(columns: Columns) -> int:
    """The last update that was logged."""
    return max(columns.get("step", []), default=-1)


def mean(name: str) -> Measure:
    """Over the whole run."""
    return lambda columns: _mean(points(columns, name))


def at_the_end(name: str) -> Measure:
    return lambda columns: _mean(points(columns, name)[-LAST:])


def halfway(name: str) -> Measure:
    """The mean of the LAST updates before half of the run is over."""

    def measure(columns: Columns) -> float | None:
        found = points(columns, name)
        return _mean(found[max(0, len(found) // 2 - LAST) : len(found) // 2])

    return measure


def at_the_beginning(name: str) -> Measure:
    return lambda columns: _mean(points(columns, name)[:1])


def _mean(found: list[tuple[float, float]]) -> float | None:
    return sum(value for _, value in found) / len(found) if found else None


def productivity(columns: Columns) -> float | None:
    """Right held-out responses per call after the last update; None without a call, or where one was not measured."""
    right, calls = last("eval/accuracy")(columns), last("eval/calls")(columns)
    return right / calls if right is not None and calls else None


def updates_to_half(columns: Columns) -> float | None:
    """Where the held-out accuracy first reaches GOAL, between two evaluations on the straight line; where it does not,
    the last update: it took longer."""
    found = points(columns, "eval/accuracy")
    if not found:
        return None
    if found[0][1] >= GOAL:
        return found[0][0]
    for (step, value), (later, reached) in pairwise(found):
        if reached >= GOAL:
            return step + (later - step) * (GOAL - value) / (reached - value)
    return found[-1][0]


def reached_half(columns: Columns) -> float | None:
    """1.0 where the held-out accuracy reaches GOAL, 0.0 where it never does and `updates_to_half` is a bound."""
    found = points(columns, "eval/accuracy")
    return float(any(value >= GOAL for _, value in found)) if found else None


def groups_at(columns: Columns, stage: str) -> list[tuple[float, float]]:
    """(step, groups that came to the stage "rolled" or "trained" in it; pipeline/bias_meter.py)."""
    names = [n for n in columns if n.startswith("selection/difficulty/") and n.endswith(f"/{stage}")]
    return [
        (step, sum(columns[name][i] or 0.0 for name in names)) for i, step in enumerate(columns.get("step", [])) if step
    ]


def rolled_per_trained(columns: Columns) -> float | None:
    """Groups rolled for each that was trained, over the last third of the updates; None where none was trained."""
    late = 2 * _end(columns) / 3
    rolled, trained = (
        sum(n for step, n in groups_at(columns, stage) if step > late) for stage in ("rolled", "trained")
    )
    return rolled / trained if trained else None


def together(columns: Columns) -> float | None:
    """Correlation (Pearson) of held-out accuracy and code ratio over the evaluations; None where one is constant."""
    accuracy, code = dict(points(columns, "eval/accuracy")), dict(points(columns, "eval/code_ratio"))
    pairs = [(accuracy[step], code[step]) for step in accuracy if step in code]
    if len(pairs) < 3:
        return None
    mean_a, mean_c = (sum(p[i] for p in pairs) / len(pairs) for i in (0, 1))
    covariance = sum((a - mean_a) * (c - mean_c) for a, c in pairs)
    spread = (sum((a - mean_a) ** 2 for a, _ in pairs) * sum((c - mean_c) ** 2 for _, c in pairs)) ** 0.5
    return covariance / spread if spread > 1e-12 else None


def _seconds_and_accuracy(columns: Columns) -> list[tuple[float, float]]:
    """Return (seconds of training so far, mean accuracy of the samples of the last SMOOTHED updates) of each update."""
    found: list[tuple[float, float]] = []
    seconds = 0.0
    accuracies: list[float] = []
    for wall, accuracy in zip(columns.get("wall_s", ()), columns.get("accuracy", ()), strict=False):
        if wall is None or accuracy is None:
            continue
        seconds += wall
        accuracies.append(accuracy)
        latest = accuracies[-SMOOTHED:]
        if len(latest) == SMOOTHED:
            found.append((seconds, sum(latest) / SMOOTHED))
    return found


def seconds_to_60(columns: Columns) -> float | None:
    """Return the seconds of training until the sampled accuracy reaches GOAL_OF_TIME.

    A run that does not reach it counts with its whole duration, which is a lower bound.
    """
    found = _seconds_and_accuracy(columns)
    return next((seconds for seconds, accuracy in found if accuracy >= GOAL_OF_TIME), found[-1][0] if found else None)


def reached_60(columns: Columns) -> float | None:
    """Return 1.0 if the run reached GOAL_OF_TIME, else 0.0: then `seconds_to_60` is only a lower bound."""
    found = _seconds_and_accuracy(columns)
    return float(any(accuracy >= GOAL_OF_TIME for _, accuracy in found)) if found else None


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
USUAL = ("accuracy_before", "accuracy", "greedy_accuracy", "code_ratio_before", "code_ratio")
OF_CALLS = ("eval/calls", "code_pass_correct", "code_pass_incorrect", "reward/code_ok")
CURVES = ("eval/accuracy", "eval/code_ratio", "eval/reward/viewed_first", *OF_CALLS, "reward/format_ok")


def lately_rolled_per_trained(columns: Columns) -> list[tuple[float, float]]:
    """(step, groups rolled for each that was trained in it and the SPAN - 1 before)."""
    rolled, trained = groups_at(columns, "rolled"), groups_at(columns, "trained")
    found = []
    for i, (step, _) in enumerate(rolled):
        lately = slice(max(0, i + 1 - SPAN), i + 1)
        if taken := sum(n for _, n in trained[lately]):
            found.append((step, sum(n for _, n in rolled[lately]) / taken))
    return found


def curves_of(columns: Columns) -> Curves:
    found = {name: points(columns, name) for name in CURVES} | {
        "rolled per trained": lately_rolled_per_trained(columns)
    }
    return {name: curve for name, curve in found.items() if curve}
