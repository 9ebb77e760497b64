"""Summary: the figures over all attempts, and what they have to reach."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import fmean
from typing import Any

from miniatures import numbers

from .attempt import ARMS, REPO, Attempt, cpu_name

RESULTS = REPO / "benchmarks" / "results" / "real_model"
"""Where every attempt is kept."""

_OF_EVERY_TASK = {
    "minutes_max": (30, "<="),
    "false_alarms": (0, "<="),
    "open": (0, "<="),
    "errors": (0, "<="),
    "peak_pss_gb": (9.5, "<="),
}
BARS = {
    "numbers": {
        "accuracy_before": (0.25, "<="),
        "greedy_after_min": (0.90, ">="),
        "accuracy_after_min": (0.80, ">="),
        "unseen_kinds_min": (0.70, ">="),
        "accuracy_no_tool": (0.45, "<="),
        **_OF_EVERY_TASK,
    },
    "functions": {"gain_over_untrained_min": (0.15, ">="), **_OF_EVERY_TASK},
    "search": {"gain_over_untrained_min": (0.30, ">="), **_OF_EVERY_TASK},
}
"""Task -> figure -> (bar, which side of it is right)."""


def summarise(attempts: list[Attempt], asked: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the figures over all attempts; None for what no attempt says.

    Args:
        attempts: Those of all arms and seeds, failed ones included.
        asked: What an evaluation of the written prompts found (prompts.py). The best prompt is `accuracy_before`; for
            the one that is trained the attempts' own evaluations count instead.
    """
    tool = [attempt for attempt in attempts if attempt.arm == "tool"]
    no_tool = [attempt for attempt in attempts if attempt.arm == "no_tool"]
    of_prompts = dict(asked["sampled"]) if asked else {}
    before = _values(tool, "before", "sampled", "trained_kinds")
    if before:  # the untrained model is the same for every seed: its mean over all of them is the better estimate
        of_prompts[numbers.PROMPT] = fmean(before)
    return {
        "accuracy_before": _best(max, list(of_prompts.values())),
        "greedy_after_min": _best(min, _values(tool, "after", "greedy", "trained_kinds")),
        "accuracy_after_min": _best(min, _values(tool, "after", "sampled", "trained_kinds")),
        "unseen_kinds_min": _best(min, _values(tool, "after", "greedy", "unseen_kinds")),
        "unseen_kinds_sampled_min": _best(min, _values(tool, "after", "sampled", "unseen_kinds")),
        "accuracy_no_tool": _best(max, _values(no_tool, "after", "greedy", "trained_kinds")),
        "minutes_max": _best(max, [attempt.minutes for attempt in tool]),
        **_of_every_task(attempts),
    }


def summarise_with_cold_start(attempts: list[Attempt]) -> dict[str, Any]:
    """Return the figures over all attempts of a task with a cold start; None for what no attempt says.

    Accuracy is sampled, on held-out rows of the trained kinds. A gain is a difference within one seed.
    """
    evaluated = [attempt for attempt in attempts if attempt.untrained and attempt.before and attempt.after]
    at = {when: _values(evaluated, when, "sampled", "trained_kinds") for when in ("untrained", "before", "after")}
    over_untrained = [after - untrained for after, untrained in zip(at["after"], at["untrained"], strict=True)]
    over_cold_start = [after - before for after, before in zip(at["after"], at["before"], strict=True)]
    return {
        "accuracy_untrained_max": _best(max, at["untrained"]),
        "accuracy_cold_start_max": _best(max, at["before"]),
        "accuracy_after_min": _best(min, at["after"]),
        "greedy_after_min": _best(min, _values(evaluated, "after", "greedy", "trained_kinds")),
        "gain_over_untrained_min": _best(min, over_untrained),
        "gain_over_cold_start_min": _best(min, over_cold_start),
        "minutes_max": _best(max, [attempt.minutes for attempt in attempts]),
        **_of_every_task(attempts),
    }


def _of_every_task(attempts: list[Attempt]) -> dict[str, Any]:
    return {
        "false_alarms": sum(attempt.false_alarms for attempt in attempts),
        "open": sum(attempt.open for attempt in attempts),
        "errors": sum(len(attempt.errors) for attempt in attempts),
        "peak_pss_gb": _best(max, [attempt.peak_pss_gb for attempt in attempts]),
        "seeds": {arm: [attempt.seed for attempt in attempts if attempt.arm == arm] for arm in ARMS},
        "load": _best(max, [load for attempt in attempts for load in attempt.load]),
        "cpu": cpu_name(),
    }


def _values(attempts: Iterable[Attempt], when: str, figure: str, kinds: str) -> list[float]:
    found = (getattr(attempt, when).get(figure, {}).get(kinds) for attempt in attempts)
    return [value for value in found if value is not None]


def _best(choose: Callable[[list[float]], float], values: list[float]) -> float | None:
    return round(choose(values), 4) if values else None
