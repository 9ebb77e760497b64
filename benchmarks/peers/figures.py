"""Figures: what a system wrote, and what the evaluator found -> its line of the table and of the last JSON line.

figures(...) of each run  ->  medians(runs)  ->  markdown, as_json, over_trl
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from .cpu import spent
from .systems import Ran
from .work import BARS, TOY, Step

HEAD = (
    "system", "updates", "sampled tokens/s", "trained tokens/s", "trained samples/s", "s to {bar}", "updates to {bar}",
    "accuracy", "trained for s", "CPU s", "CPU s to {bar}", "peak GiB", "where the seconds went",
)  # fmt: skip
TO_BAR = ("seconds_to_bar", "updates_to_bar", "cpu_s_to_bar")
"""In the last line they are called seconds_to_85 where the bar is .85."""
NUMBERS = (
    "sampled_tokens_per_s",
    "trained_tokens_per_s",
    "trained_samples_per_s",
    "varied_samples_per_s",
    *TO_BAR,
    "accuracy",
    "seconds",
    "cpu_s",
    "peak_pss_gib",
)
JSON_KEYS = (*NUMBERS, "seconds_to_bar_by_run", "cpu_s_by_process", "update_seconds", "curve")

LITTLE_S = 0.5
"""CPU seconds of a process below which it is not named."""


@dataclass(frozen=True)
class Figures:
    """One run's, or medians of several. None where there is nothing to tell: `why` says it. `seconds_to_bar`: of
    training, until the first weights kept that reach the bar. `trained_samples_per_s`: those that updates were computed
    on; `varied_samples_per_s`: the ones of groups with variance among them, which alone have a gradient."""

    updates: int = 0
    sampled_tokens_per_s: float | None = None
    trained_tokens_per_s: float | None = None
    trained_samples_per_s: float | None = None
    varied_samples_per_s: float | None = None
    seconds_to_bar: float | None = None
    updates_to_bar: float | None = None
    accuracy: float | None = None
    seconds: float | None = None
    cpu_s: float | None = None
    """CPU time of all its processes in those seconds, which other work on the machine disturbs little."""
    cpu_s_to_bar: float | None = None
    cpu_s_by_process: dict[str, float] | None = None
    peak_pss_gib: float | None = None
    phases: dict[str, float] = field(default_factory=dict)
    """Share of the seconds of training by what was done."""
    why: str | None = None
    seconds_to_bar_by_run: tuple[float | None, ...] = (None,)
    """None: a run that did not reach the bar. One whose evaluation failed has no part: nobody knows whether it did."""
    update_seconds: tuple[float, ...] = ()
    """When each update was done, in seconds of training."""
    curve: tuple[tuple[float, float], ...] = ()
    """(seconds of training, accuracy) of each weights that were evaluated."""


def figures(
    steps: Sequence[Step], accuracy: Mapping[int, float], ran: Ran, began: float | None, bar: float = BARS[TOY]
) -> Figures:
    """`accuracy`: update -> that of its weights. `began`: when training did, in seconds since the epoch."""
    if not steps or began is None:
        return Figures(peak_pss_gib=ran.peak_gib, why=ran.why)
    seconds = {step.step: step.seconds for step in steps}
    total = steps[-1].seconds
    reached = next((step for step, value in sorted(accuracy.items()) if value >= bar and step in seconds), None)
    phases: Counter[str] = Counter()
    for step in steps:
        phases.update(step.phases)
    by_process = spent(ran.cpu, began, began + total)
    to_bar = None if reached is None else round(seconds[reached], 1)
    return Figures(
        updates=len(steps),
        sampled_tokens_per_s=round(sum(s.sampled for s in steps) / total, 1),
        trained_tokens_per_s=round(sum(s.trained for s in steps) / total, 1),
        trained_samples_per_s=round(sum(s.samples for s in steps) / total, 3) or None,
        varied_samples_per_s=round(sum(s.with_variance for s in steps) / total, 3) or None,
        seconds_to_bar=to_bar,
        updates_to_bar=reached,
        accuracy=accuracy[max(accuracy)] if accuracy else None,
        seconds=round(total, 1),
        cpu_s=round(sum(by_process.values()), 1) if ran.cpu else None,
        cpu_s_to_bar=round(sum(spent(ran.cpu, began, began + seconds[reached]).values()), 1)
        if ran.cpu and reached is not None
        else None,
        cpu_s_by_process={
            name: round(s, 1) for name, s in sorted(by_process.items(), key=lambda x: -x[1]) if s >= LITTLE_S
        }
        or None,
        peak_pss_gib=ran.peak_gib,
        phases={name: round(s / total, 3) for name, s in phases.items()},
        why=ran.why
        or (
            None
            if reached is not None or not accuracy
            else f"Below {bar:.0%} in all {len(accuracy)} evaluations, {max(accuracy.values()):.1%} at best."
        ),
        seconds_to_bar_by_run=(to_bar,),
        update_seconds=tuple(round(s.seconds, 1) for s in steps),
        curve=tuple((round(seconds[n], 1), value) for n, value in sorted(accuracy.items()) if n in seconds),
    )


def medians(runs: Sequence[Figures]) -> Figures:
    """The medians of one system's runs, number by number; the rest is of the run whose seconds are the median, of those
    that made an update. A run that did not reach the bar took longer than all that did; one whose evaluation failed has
    no part in that. `why`: of the first that has a sentence."""
    to_bar = tuple(seconds for run in runs for seconds in run.seconds_to_bar_by_run)

    def middle(name: str) -> Any:
        told = [value for run in runs if (value := getattr(run, name)) is not None]
        if name in TO_BAR:
            told += [math.inf] * (len(to_bar) - len(told))
        found = median(told) if told else math.inf
        return round(found, 3) if math.isfinite(found) else None

    trained = sorted((run for run in runs if run.seconds is not None), key=lambda run: run.seconds or 0.0)
    return replace(
        trained[(len(trained) - 1) // 2] if trained else runs[0],
        **{name: middle(name) for name in NUMBERS},
        why=next((run.why for run in runs if run.why), None),
        seconds_to_bar_by_run=to_bar,
    )


def cells(name: str, f: Figures) -> tuple[str, ...]:
    def number(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    by_run = sorted(f.seconds_to_bar_by_run, key=lambda s: math.inf if s is None else s)
    spread = f" ({number(by_run[0], '.1f')} to {number(by_run[-1], '.1f')})" if len(by_run) > 1 else ""
    return (
        name,
        str(f.updates),
        number(f.sampled_tokens_per_s, ",.0f"),
        number(f.trained_tokens_per_s, ",.0f"),
        number(f.trained_samples_per_s, ".2f"),
        number(f.seconds_to_bar, ".1f") + spread,
        number(f.updates_to_bar, "g"),
        number(f.accuracy, ".1%"),
        number(f.seconds, ".1f"),
        number(f.cpu_s, ".1f"),
        number(f.cpu_s_to_bar, ".1f"),
        number(f.peak_pss_gib, ".2f"),
        ", ".join(f"{phase} {share:.0%}" for phase, share in sorted(f.phases.items(), key=lambda x: -x[1])),
    )


def markdown(found: Mapping[str, Figures], bar: float = BARS[TOY]) -> str:
    head = tuple(title.format(bar=f"{100 * bar:.0f} %") for title in HEAD)
    rows = [head, ("---",) * len(HEAD), *(cells(name, f) for name, f in found.items())]
    notes = [f"- {name}: {f.why}" for name, f in found.items() if f.why]
    return "\n".join(["| " + " | ".join(row) + " |" for row in rows] + (["", *notes] if notes else []))


def as_json(found: Mapping[str, Figures], bar: float = BARS[TOY]) -> dict[str, dict]:
    """The last line: figure -> system -> value, null where there is none, and `why` of those."""
    return {
        key.replace("_to_bar", f"_to_{100 * bar:.0f}"): {name: getattr(f, key) for name, f in found.items()}
        for key in JSON_KEYS
    } | {"why": {name: f.why for name, f in found.items() if f.why}}


def over_trl(found: Mapping[str, Figures], bar: float) -> dict[str, Any]:
    """Ours over TRL with tools, the best of its learning rates; null where either has no figure.

    `seconds_to_80_over_trl` is of the bar, if both reach it; `seconds_to_common_over_trl` of `common_accuracy`, the
    highest at or below the bar that weights of both reach.
    """
    ours = found.get("ours", Figures())
    trl = best([f for name, f in found.items() if name.split("@")[0] == "trl_tools"])

    def ratio(a: float | None, b: float | None) -> float | None:
        return round(a / b, 3) if a and b else None

    common = min(bar, *(max((value for _, value in f.curve), default=0.0) for f in (ours, trl)))
    to_common = [next((s for s, value in f.curve if value >= common), None) for f in (ours, trl)]
    return {
        "trained_samples_per_s_over_trl": ratio(ours.trained_samples_per_s, trl.trained_samples_per_s),
        "varied_samples_per_s_over_trl": ratio(ours.varied_samples_per_s, trl.varied_samples_per_s),
        "trained_tokens_per_s_over_trl": ratio(ours.trained_tokens_per_s, trl.trained_tokens_per_s),
        f"seconds_to_{100 * bar:.0f}_over_trl": ratio(ours.seconds_to_bar, trl.seconds_to_bar),
        "common_accuracy": common or None,
        "seconds_to_common_over_trl": ratio(*to_common) if common else None,
        "peak_memory_over_trl": ratio(ours.peak_pss_gib, trl.peak_pss_gib),
    }


def best(runs: Sequence[Figures]) -> Figures:
    """The one that reaches the bar first, or else has the highest accuracy."""
    reached = [f for f in runs if f.seconds_to_bar is not None]
    if reached:
        return min(reached, key=lambda f: f.seconds_to_bar or math.inf)
    return max(runs, key=lambda f: max((value for _, value in f.curve), default=0.0), default=Figures())
