"""Cold start: a schedule of trace batches -> a base model that passes its gates, or an error with the figures.

    batches(schedule, seed)  ->  sft_step(rows, lr)  ...  ->  evaluate()  ->  gates passed: done
                                      ^------- batches of a repair <------------ gates missed

The base model must be able to use Python without preferring it: reinforcement learning then has something to discover.
Stage one is mostly tool traces, because copying operands into code and results into answers has to be learned first;
stage two resets how often code is used, which takes few steps. Whoever calls brings the learner and the evaluation;
nothing here knows how they work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, Protocol

from openrlhf_tir.errors import ColdStartError

from .traces import ColdStartTrace, draw_trace

Draw = Callable[[Random, float], ColdStartTrace]
"""(random numbers, tool ratio) -> an example: a lesson's (lessons)."""
Gates = Mapping[str, tuple[float, float]]
SftStep = Callable[[list[ColdStartTrace], float], Awaitable[Mapping[str, float]]]
"""(rows, learning rate) -> metrics: one update on the weighted mean of the rows' token losses."""


class BaseScores(Protocol):
    """What a base model is judged by, at temperature 1 on held-out problems; fractions. `code_correct`: accuracy where
    code was used."""

    accuracy: float
    code_ratio: float | None
    format_ok: float
    code_correct: float

    @property
    def parts(self) -> Mapping[str, float]:
        """`reward/PART`: its mean."""


def figure(figures: BaseScores, name: str) -> float:
    """Return the figure that a gate names: a field of `figures`, or the mean of a part of the reward; 0 if no response
    has it."""
    return float(figures.parts.get(name, 0.0) if name.startswith("reward/") else getattr(figures, name) or 0.0)


GATES: dict[str, tuple[float, float]] = {
    "accuracy": (0.25, 0.45),
    "code_ratio": (0.25, 0.40),
    "format_ok": (0.95, 1.0),
    "code_correct": (0.92, 1.0),
}
"""Inclusive ranges. With less code than a quarter RL has little margin, with more accuracy little to show; a base whose
code is wrong more often than one time in twelve was seen to end below 0.90 (code_correct .87 -> accuracy .87, .94 ->
.90, .97 -> .96)."""


STEERED = "code_ratio"
"""The figure that the tool ratio of most lessons decides."""


class Stage(NamedTuple):
    """Some steps whose examples are solved by code with the probability `tool_ratio`."""

    steps: int
    tool_ratio: float


class Batch(NamedTuple):
    """The examples of one step, its learning rate, and the tool ratio by which the examples were drawn."""

    rows: list[ColdStartTrace]
    lr: float
    tool_ratio: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """The steps of a cold start and their learning rates.

    The rate rises linearly for `warmup_steps`, then falls linearly over all stages.

    Attributes:
        stages: The stages, one after the other.
        batch_size: Examples of a step.
        lr: Peak of the learning rate.
        warmup_steps: Steps until the peak.
        final_lr_ratio: Rate of the last step, as a fraction of the peak.
        repair_lr_ratio: Rate of a repair's first step, as a fraction of the peak.
        max_repairs: Repairs after missed gates; then the cold start fails.
    """

    stages: tuple[Stage, ...] = (Stage(760, 0.85), Stage(120, 0.36))
    batch_size: int = 16
    lr: float = 2e-3
    warmup_steps: int = 50
    final_lr_ratio: float = 0.05
    repair_lr_ratio: float = 0.4
    max_repairs: int = 4

    @property
    def steps(self) -> int:
        """Steps of all stages."""
        return sum(stage.steps for stage in self.stages)

    @property
    def settled_ratio(self) -> float:
        """The tool ratio of the last stage, which decides how often the base model uses code."""
        return self.stages[-1].tool_ratio

    def lr_at(self, step: int) -> float:
        """Return the learning rate of a step, which is 0 to steps-1."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.lr * (1 - (1 - self.final_lr_ratio) * done)


def batches(schedule: Schedule, rng: Random, draw: Draw = draw_trace) -> Iterator[Batch]:
    """Yield the batches of the schedule's stages, each of fresh problems."""
    ratios = [stage.tool_ratio for stage in schedule.stages for _ in range(stage.steps)]
    for step, ratio in enumerate(ratios):
        yield _batch(schedule, rng, draw, ratio, schedule.lr_at(step))


def repair_batches(schedule: Schedule, stages: Sequence[Stage], rng: Random, draw: Draw) -> Iterator[Batch]:
    """Yield the batches of a repair after a missed gate.

    The learning rate falls anew: at one low rate, code that was wrong one time in ten stayed so.
    """
    ratios = [stage.tool_ratio for stage in stages for _ in range(stage.steps)]
    high, low = schedule.repair_lr_ratio, schedule.final_lr_ratio
    for step, ratio in enumerate(ratios):
        yield _batch(schedule, rng, draw, ratio, schedule.lr * (high - (high - low) * step / len(ratios)))


def _batch(schedule: Schedule, rng: Random, draw: Draw, ratio: float, lr: float) -> Batch:
    return Batch([draw(rng, ratio) for _ in range(schedule.batch_size)], lr, ratio)


def check_gates(figures: BaseScores, gates: Gates = GATES) -> list[str]:
    """Return a sentence for each missed gate."""
    measured = {name: figure(figures, name) for name in gates}
    return [
        f"{name} {_shown(measured[name], lo, hi)} is outside {lo:.2f}..{hi:.2f}"
        for name, (lo, hi) in gates.items()
        if not lo <= measured[name] <= hi
    ]


def _shown(value: float, lo: float, hi: float) -> str:
    """Return a figure with three decimals, or with six if it would seem to be inside with three."""
    return f"{value:.6f}" if lo <= round(value, 3) <= hi else f"{value:.3f}"


def repair(
    figures: BaseScores, settled_ratio: float, gates: Gates = GATES, steered: str = STEERED
) -> tuple[list[Stage], float]:
    """Return what to train next after a missed gate, and the tool ratio at which that settles.

    Code that does not work yet, or a broken format: more tool traces, then settle again. `steered` names the figure
    that the tool ratio decides (Lesson.steered): where it has a gate the ratio is moved by its distance from the gate's
    middle. Accuracy alone out of range, while code works: it goes up and down with the amount of code, where that is
    what is steered. Accuracy alone too low, where a part of the reward is steered: what follows that part does not work
    yet.
    """
    low, high = gates["accuracy"]
    shift = sum(gates[steered]) / 2 - figure(figures, steered) if steered in gates else 0.0
    if steered == STEERED and not _missed(figures, steered, gates) and _missed(figures, "accuracy", gates):
        shift = 0.0
        if figures.accuracy < low:
            shift = 0.04
        elif figures.accuracy > high:
            shift = -0.04
    ratio = min(0.6, max(0.1, settled_ratio + shift))
    weak = any(_missed(figures, name, gates) for name in ("code_correct", "format_ok") if name != steered)
    weak |= steered.startswith("reward/") and not _missed(figures, steered, gates) and figures.accuracy < low
    return ([Stage(160, 0.85)] if weak else []) + [Stage(60, ratio)], ratio


def _missed(figures: BaseScores, name: str, gates: Gates) -> bool:
    """Return True if a figure has a gate and is outside of it."""
    lo, hi = gates.get(name, (float("-inf"), float("inf")))
    return not lo <= figure(figures, name) <= hi


async def cold_start(
    sft_step: SftStep,
    evaluate: Callable[[], Awaitable[BaseScores]],
    *,
    seed: int,
    schedule: Schedule = Schedule(),
    draw: Draw = draw_trace,
    gates: Gates = GATES,
    steered: str = STEERED,
    on_step: Callable[[Batch, Mapping[str, float]], None] = lambda batch, metrics: None,
) -> BaseScores:
    """Run the schedule and, at most `max_repairs` times, a repair. Return the figures that passed the gates.

    Args:
        sft_step: Makes one update.
        evaluate: Returns the figures of the model as it is.
        seed: Seed of the examples.
        schedule: Steps, learning rates, and the number of repairs.
        draw: Draws an example.
        gates: The figures that must lie in a range.
        steered: As `repair`.
        on_step: Called after each update with its batch and metrics.

    Raises:
        ColdStartError: No repair helped. The message has the last figures. Errors of learner and evaluation pass
            through.
    """
    rng = Random(f"cold_start/{seed}")
    ratio = schedule.settled_ratio
    todo = batches(schedule, rng, draw)
    for attempt in range(schedule.max_repairs + 1):
        for batch in todo:
            on_step(batch, await sft_step(batch.rows, batch.lr))
        figures = await evaluate()
        missed = check_gates(figures, gates)
        if not missed:
            return figures
        if attempt < schedule.max_repairs:
            stages, ratio = repair(figures, ratio, gates, steered)
            todo = repair_batches(schedule, stages, rng, draw)
    raise ColdStartError(
        f"The base model misses its gates after {schedule.steps} steps and {schedule.max_repairs} repairs:"
        f" {'; '.join(missed)}. Try another seed (--train.seed; `reproduce`: --seed-list); the gates are in"
        " miniatures/toy (cold_start.py, lessons)."
    )
