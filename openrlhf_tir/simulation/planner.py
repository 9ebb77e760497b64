"""Planner: how many GPUs should roll out, how many train, and with which staleness bound. Candidates are simulated, not
estimated.

A GPU more for rollout makes groups faster, one more for training makes steps faster; tails, weight pushes and the
staleness gate decide where the balance is, and only a run of the loop shows it. The fluid bound max(saturated rollout,
learner) chooses which splits are worth a run. Assumed: the learner's time is inverse to its GPUs, and an engine is one
replica of `gpus_per_engine` GPUs whatever their number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ..errors import ConfigError
from .run import WARM_UP, Result, configure, simulate
from .workload import Workload

STALENESS = (1, 2, 4, 8)
STEPS = 8
AROUND = (0.75, 1.0, 1.25, 1.6, 2.0)
"""Engines to try, as multiples of what the fluid bound says; tails keep engines below saturation, so more than it says
may be better."""
CLOSE = 0.97
"""Share of the best throughput that is as good: then the fresher tokens win."""


@dataclass(frozen=True, slots=True)
class Split:
    """`rollout_gpus` + `learner_gpus` make the cluster; `learner_s` is what a step then takes."""

    engines: int
    rollout_gpus: int
    learner_gpus: int
    learner_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    split: Split
    staleness: int
    result: Result

    @property
    def throughput(self) -> float:
        """Trained groups per second."""
        return self.result.trained_groups / self.result.seconds


def splits(workload: Workload, *, gpus: int, gpus_per_engine: int, learner_s: float, learner_gpus: int) -> list[Split]:
    """The splits worth a run; `learner_s` is the time of a step on `learner_gpus`. Raises ConfigError when nothing is
    left to train on."""
    if gpus <= gpus_per_engine:
        raise ConfigError(
            f"{gpus} GPUs cannot hold an engine of {gpus_per_engine} and a learner. Use at least {gpus_per_engine + 1}."
        )
    most = (gpus - 1) // gpus_per_engine
    per_engine = workload.saturated_groups_per_s / workload.engine.count * workload.acceptance.start

    def split(engines: int) -> Split:
        training = gpus - engines * gpus_per_engine
        return Split(engines, engines * gpus_per_engine, training, learner_s * learner_gpus / training)

    best = min(range(1, most + 1), key=lambda e: max(workload.prompts / (e * per_engine), split(e).learner_s))
    return [split(e) for e in sorted({min(most, max(1, round(best * factor))) for factor in AROUND})]


def plans(
    workload: Workload, candidates: list[Split], *, tick: Callable[[Plan], None] = lambda plan: None
) -> list[Plan]:
    """Simulate every candidate with every staleness bound, `depth = auto`."""
    return list(_plans(workload, candidates, tick))


def _plans(workload: Workload, candidates: list[Split], tick: Callable[[Plan], None]) -> Iterator[Plan]:
    for split in candidates:
        sized = replace(
            workload.with_batch(workload.prompts, workload.samples_per_prompt, engines=split.engines),
            steps=STEPS + WARM_UP,
        )
        for staleness in STALENESS:
            cfg = configure(sized, mode="pipeline", max_staleness=staleness, depth="auto")
            plan = Plan(split, staleness, simulate(sized, cfg, learner_s=split.learner_s))
            tick(plan)
            yield plan


def recommend(found: list[Plan]) -> Plan:
    """The plan with the freshest tokens, of those that are as fast as the fastest (CLOSE)."""
    best = max(p.throughput for p in found)
    return min(
        (p for p in found if p.throughput >= CLOSE * best),
        key=lambda p: (round(p.result.staleness_mean, 2), p.staleness, p.split.engines),
    )
