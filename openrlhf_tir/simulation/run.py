"""simulate: a workload and a configuration -> what the pipeline would do, in virtual seconds.

The loop, budget, gate, replay, ledger, depth controller and checkpoint code are the real ones; engines, environments,
learner and weight pushes are models (engine_model.py, environment.py, parts.py). Ledger and checkpoint go to a
temporary directory."""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..config import Config
from ..pipeline.checkpoints.checkpoint import Checkpoints
from ..pipeline.lane.keeper import fast_lane
from ..pipeline.loop import Pipeline
from ..replay.ledger import Ledger
from ..types import GroupKey
from .faults import Fault, script_faults
from .parts import PHASES, TASK, EndlessPrompts, SimulatedLearner, SimulatedPublisher, StepRecorder
from .rollout import SimulatedRollout
from .virtual_loop import run
from .workload import Acceptance, Workload

WARM_UP = 2
"""Steps that are not counted: buffers fill and the first groups are all fresh."""
MATCH_BATCHES = 3
YOUNG = 100_000
"""Objects more than were freed, between two looks of Python's cycle collector, which finds next to nothing here."""


@dataclass(slots=True)
class Result:
    """What the steps after warm-up gave. Shares are of time; `rows[name]` has a number per step, the warm-up's
    included; 8 bytes each."""

    steps: int
    seconds: float
    trained_groups: int
    trained_tokens: float
    engine_idle: float
    engine_use: float
    """Tokens decoded / tokens at the saturated rate."""
    learner_idle: float
    learner_s: float
    phases_s: dict[str, float]
    staleness: dict[int, int]
    """Learner version - token version -> trained tokens, of the whole run."""
    ends: dict[str, int]
    acceptance: float
    bound_s: float
    """Fastest step possible: max(learner, saturated engines at the acceptance that was met)."""
    rows: dict[str, array[float]]
    wall_s: float
    cpu_s: float

    @property
    def step_s(self) -> float:
        return self.seconds / self.steps

    @property
    def efficiency(self) -> float:
        return self.bound_s / self.step_s

    @property
    def surplus_share(self) -> float:
        """Surplus groups / accepted groups."""
        surplus = self.ends.get("requeued/surplus", 0)
        return surplus / max(1, self.ends.get("buffered", 0))

    @property
    def staleness_mean(self) -> float:
        return sum(s * n for s, n in self.staleness.items()) / max(1, sum(self.staleness.values()))

    @property
    def staleness_max(self) -> int:
        return max(self.staleness, default=0)


def batch_rollout_s(workload: Workload) -> float:
    """Seconds to roll out one batch with nothing else under way: a learner's at R:T = 1:1. Mean over MATCH_BATCHES."""

    async def one(first: int) -> float:
        loop = asyncio.get_running_loop()
        rollout = SimulatedRollout(workload, loop, lambda key: True)
        await asyncio.gather(*(rollout.run_group(GroupKey(0, first + i), TASK) for i in range(workload.prompts)))
        return loop.time()

    return sum(run(one(i * workload.prompts)) for i in range(MATCH_BATCHES)) / MATCH_BATCHES


def learner_seconds(workload: Workload, ratio: float = 1.0) -> float:
    """The learner's time of a step: the workload's number, or for "match" the batch's rollout time; times `ratio`."""
    said = workload.learner_seconds_per_step
    return ratio * (batch_rollout_s(workload) if said == "match" else said)


def simulate(
    workload: Workload,
    cfg: Config,
    *,
    acceptance: Acceptance | None = None,
    learner_s: float | None = None,
    faults: tuple[Fault, ...] = (),
    warm_up: int = WARM_UP,
) -> Result:
    """Run cfg.train.max_steps updates. `cfg` and `workload` must agree on the batch (see `configure`)."""
    seconds = learner_seconds(workload) if learner_s is None else learner_s
    with tempfile.TemporaryDirectory(prefix="tir-simulate-") as directory, seldom_collected():
        cfg = cfg.model_copy(update={"run_dir": Path(directory)})
        return run(_simulate(workload, cfg, acceptance or workload.acceptance, seconds, faults, warm_up))


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Python's cycle collector looks through the trajectories under way less often; afterwards as before."""
    before = gc.get_threshold()
    gc.set_threshold(YOUNG, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


async def _simulate(
    workload: Workload,
    cfg: Config,
    acceptance: Acceptance,
    learner_s: float,
    faults: tuple[Fault, ...],
    warm_up: int,
) -> Result:
    wall, cpu = time.perf_counter(), time.process_time()
    loop = asyncio.get_running_loop()
    learner = SimulatedLearner(learner_s, cfg.minibatches, cfg.train.max_epochs, cfg.rollout.batch_size)
    figures = StepRecorder()
    rollout = SimulatedRollout(
        workload,
        loop,
        lambda key: workload.accepted(key, acceptance.at(learner.version)),
        patience_s=cfg.env.step_timeout_s,
        keeps_kv=cfg.pipeline.keeps_kv,
    )
    figures.probe = lambda: {
        "engine_tokens": sum(a.engine.stats()["tokens"] for a in rollout.actors),
        "engine_busy_s": sum(a.engine.busy_s for a in rollout.actors),
        "learner_busy_s": learner.busy_s,
    }
    script_faults(faults, rollout, loop)
    ledger = Ledger(cfg.run_dir / "ledger.jsonl")
    pipeline = Pipeline(
        cfg,
        prompts=EndlessPrompts(),
        rollout=rollout,
        learner=learner,
        publisher=SimulatedPublisher(rollout, workload.engine.weight_push_s),
        ledger=ledger,
        checkpoints=Checkpoints(cfg.run_dir / "ckpt", 1),
        observer=figures,
    )
    slots = workload.engine.max_running
    async with fast_lane(cfg, pipeline.scheduler, rollout, longest=workload.longest, slots=slots):
        await pipeline.run()
    ledger.close()
    return _result(
        workload,
        figures,
        learner,
        min(warm_up, len(figures.rows["time"]) - 1),
        time.perf_counter() - wall,
        time.process_time() - cpu,
    )


def _result(
    workload: Workload, figures: StepRecorder, learner: SimulatedLearner, warm_up: int, wall_s: float, cpu_s: float
) -> Result:
    rows, steps, engines = figures.rows, len(figures.rows["time"]) - warm_up, workload.engine.count

    def over(name: str) -> float:
        """The growth of a running total after warm-up."""
        return rows[name][-1] - (rows[name][warm_up - 1] if warm_up else 0.0)

    seconds = over("time")
    groups, rejected = steps * workload.prompts, over("rejected")
    acceptance = groups / (groups + rejected)
    saturated = workload.engine.saturated_tokens_per_s * engines
    return Result(
        steps=steps,
        seconds=seconds,
        trained_groups=groups,
        trained_tokens=sum(rows["trained_tokens"][warm_up:]),
        engine_idle=1 - over("engine_busy_s") / (seconds * engines),
        engine_use=over("engine_tokens") / (seconds * saturated),
        learner_idle=1 - over("learner_busy_s") / seconds,
        learner_s=learner.seconds,
        phases_s={name: over(f"{name}_s") for name in PHASES},
        staleness=dict(sorted(Counter(learner.staleness).items())),
        ends=dict(figures.ends),
        acceptance=acceptance,
        bound_s=max(learner.seconds, workload.prompts / acceptance / workload.saturated_groups_per_s),
        rows=rows,
        wall_s=wall_s,
        cpu_s=cpu_s,
    )


def configure(workload: Workload, **pipeline: object) -> Config:
    """A Config for `workload`: its batch and steps, `pipeline` settings (mode, max_staleness, depth, ...), everything
    else at its default."""
    return Config.model_validate(
        {
            "actor": {"num_gpus_per_node": 1},
            "rollout": {
                "batch_size": workload.prompts,
                "n_samples_per_prompt": workload.samples_per_prompt,
                "min_valid": min(2, workload.samples_per_prompt),
            },
            "vllm": {"num_engines": workload.engine.count},
            "pipeline": pipeline,
            "algo": {"advantage": {"estimator": "group_norm"}},  # with which all settings of the pipeline go
            "train": {"max_steps": workload.steps},
            "ckpt": {"save_steps": -1},
        }
    )
