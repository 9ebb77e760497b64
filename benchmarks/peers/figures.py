"""Figures: what a system wrote, and what the evaluator found -> its line of the table and of the last JSON line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .cpu import spent
from .systems import Ran
from .work import BAR, Step

HEAD = (
    "system", "updates", "sampled tokens/s", "trained tokens/s", "s to 85 %", "accuracy", "trained for s", "CPU s",
    "CPU s to 85 %", "peak GiB", "where the seconds went",
)  # fmt: skip
JSON_KEYS = (
    "sampled_tokens_per_s",
    "trained_tokens_per_s",
    "seconds_to_85",
    "accuracy",
    "seconds",
    "cpu_s",
    "cpu_s_to_85",
    "cpu_s_by_process",
    "peak_pss_gib",
)

LITTLE_S = 0.5
"""CPU seconds of a process below which it is not named."""


@dataclass(frozen=True)
class Figures:
    """None where there is nothing to tell: `why` says it. `seconds_to_85`: of training, until the first weights kept
    that reach the bar."""

    updates: int
    sampled_tokens_per_s: float | None
    trained_tokens_per_s: float | None
    seconds_to_85: float | None
    accuracy: float | None
    seconds: float | None
    cpu_s: float | None
    """CPU time of all its processes in those seconds, which other work on the machine disturbs little."""
    cpu_s_to_85: float | None
    cpu_s_by_process: dict[str, float] | None
    peak_pss_gib: float | None
    phases: dict[str, float]
    """Share of the seconds of training by what was done."""
    why: str | None


def figures(steps: Sequence[Step], accuracy: Mapping[int, float], ran: Ran, began: float | None) -> Figures:
    """`accuracy`: update -> that of its weights. `began`: when training did, in seconds since the epoch."""
    if not steps or began is None:
        return Figures(0, None, None, None, None, None, None, None, None, ran.peak_gib, {}, ran.why)
    seconds = {step.step: step.seconds for step in steps}
    total = steps[-1].seconds
    reached = next((step for step, value in sorted(accuracy.items()) if value >= BAR and step in seconds), None)
    phases: Counter[str] = Counter()
    for step in steps:
        phases.update(step.phases)
    by_process = spent(ran.cpu, began, began + total)
    return Figures(
        updates=len(steps),
        sampled_tokens_per_s=round(sum(s.sampled for s in steps) / total, 1),
        trained_tokens_per_s=round(sum(s.trained for s in steps) / total, 1),
        seconds_to_85=None if reached is None else round(seconds[reached], 1),
        accuracy=accuracy[max(accuracy)] if accuracy else None,
        seconds=round(total, 1),
        cpu_s=round(sum(by_process.values()), 1) if ran.cpu else None,
        cpu_s_to_85=round(sum(spent(ran.cpu, began, began + seconds[reached]).values()), 1)
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
            else f"Below {BAR:.0%} in all {len(accuracy)} evaluations, {max(accuracy.values()):.1%} at best."
        ),
    )


def cells(name: str, f: Figures) -> tuple[str, ...]:
    def number(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    return (
        name,
        str(f.updates),
        number(f.sampled_tokens_per_s, ",.0f"),
        number(f.trained_tokens_per_s, ",.0f"),
        number(f.seconds_to_85, ".1f"),
        number(f.accuracy, ".1%"),
        number(f.seconds, ".1f"),
        number(f.cpu_s, ".1f"),
        number(f.cpu_s_to_85, ".1f"),
        number(f.peak_pss_gib, ".2f"),
        ", ".join(f"{phase} {share:.0%}" for phase, share in sorted(f.phases.items(), key=lambda x: -x[1])),
    )


def markdown(found: Mapping[str, Figures]) -> str:
    rows = [HEAD, ("---",) * len(HEAD), *(cells(name, f) for name, f in found.items())]
    notes = [f"- {name}: {f.why}" for name, f in found.items() if f.why]
    return "\n".join(["| " + " | ".join(row) + " |" for row in rows] + (["", *notes] if notes else []))


def as_json(found: Mapping[str, Figures]) -> dict[str, dict]:
    """The last line: figure -> system -> value, null where there is none, and `why` of those."""
    return {key: {name: getattr(f, key) for name, f in found.items()} for key in JSON_KEYS} | {
        "why": {name: f.why for name, f in found.items() if f.why}
    }
