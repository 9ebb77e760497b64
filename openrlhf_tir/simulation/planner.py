"""Find out how many GPUs should roll out, how many should train, and which staleness bound suits them, by simulation.

One more GPU for rollout makes groups faster, and one more for training makes steps faster. Long responses, weight
pushes and the staleness gate decide where the balance is, and only a run of the loop shows that. The fluid bound
max(saturated rollout, learner) selects the splits that are simulated.

Two things are assumed: a step's duration is inversely proportional to the learner's GPUs, and an engine is one replica
on `gpus_per_engine` GPUs, whatever the number of engines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..errors import ConfigError
from .run import WARM_UP, Result, configure, simulate
from .workload import Workload

STALENESS = (1, 2, 4, 8)
"""Staleness bounds that are tried."""
STEPS = 8
"""Steps of each simulation after its warm-up."""
AROUND = (0.75, 1.0, 1.25, 1.6, 2.0)
"""Numbers of engines that are tried, as multiples of the fluid bound's optimum. Long responses keep engines below
saturation, so more engines than the bound says may be better."""
CLOSE = 0.97
"""Share of the best throughput that counts as equally good. Of such plans the one with the freshest tokens is taken."""


@dataclass(frozen=True, slots=True)
class Split:
    """One way to divide the GPUs of a cluster.

    Attributes:
        engines: Number of engines.
        rollout_gpus: GPUs of all engines together.
        learner_gpus: The other GPUs.
        learner_s: Seconds of a learner step on them.
    """

    engines: int
    rollout_gpus: int
    learner_gpus: int
    learner_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """A split, a staleness bound, and what the simulation of both gave."""

    split: Split
    staleness: int
    result: Result

    @property
    def throughput(self) -> float:
        """Trained groups per second."""
        return self.result.trained_groups / self.result.seconds


def splits(workload: Workload, *, gpus: int, gpus_per_engine: int, learner_s: float, learner_gpus: int) -> list[Split]:
    """Return the splits that are worth a simulation.

    Args:
        workload: The work of a step.
        gpus: GPUs of the cluster.
        gpus_per_engine: GPUs of each engine.
        learner_s: Seconds of a learner step on `learner_gpus` GPUs.
        learner_gpus: See `learner_s`.

    Raises:
        ConfigError: One engine leaves no GPU to train on.
    """
    if gpus <= gpus_per_engine:
        raise ConfigError(
            f"{gpus} GPUs cannot hold an engine of {gpus_per_engine} and a learner. Use at least {gpus_per_engine + 1}."
        )
    most = (gpus - 1) // gpus_per_engine
    per_engine = workload.saturated_groups_per_s / workload.engine.count * workload.acceptance.start

    def split(engines: int) -> Split:
        training = gpus - engines * gpus_per_engine
        return Split(engines, engines * gpus_per_engine, training, learner_s * learner_gpus / training)

    def fluid_bound_s(engines: int) -> float:
        """Return the fastest step if nothing ever waited."""
        return max(workload.prompts / (engines * per_engine), split(engines).learner_s)

    best = min(range(1, most + 1), key=fluid_bound_s)
    return [split(engines) for engines in sorted({min(most, max(1, round(best * factor))) for factor in AROUND})]


def plans(workload: Workload, candidates: list[Split]) -> Iterator[Plan]:
    """Simulate every candidate with every staleness bound and pipeline.depth = "auto", and yield its plan."""
    for split in candidates:
        sized = replace(
            workload.with_batch(workload.prompts, workload.samples_per_prompt, engines=split.engines),
            steps=STEPS + WARM_UP,
        )
        for staleness in STALENESS:
            cfg = configure(sized, mode="pipeline", max_staleness=staleness, depth="auto")
            yield Plan(split, staleness, simulate(sized, cfg, learner_s=split.learner_s))


def recommend(plans: list[Plan]) -> Plan:
    """Return the plan with the freshest tokens among those that are about as fast as the fastest (CLOSE)."""
    best = max(plan.throughput for plan in plans)
    return min(
        (plan for plan in plans if plan.throughput >= CLOSE * best),
        key=lambda plan: (round(plan.result.staleness_mean, 2), plan.staleness, plan.split.engines),
    )
