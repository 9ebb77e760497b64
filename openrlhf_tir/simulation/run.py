"""Simulate what the pipeline would do with a workload and a configuration, in virtual seconds.

The loop, the scheduler with its gate and buffer, ledger, depth controller and checkpoints are the real code. Engines,
environments, learner and weight pushes are models (engine_model.py, environment.py, parts.py). Ledger and checkpoints
are written to a temporary directory.
"""

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
from ..pipeline.ledger.ledger import Ledger
from ..pipeline.ledger.lines import LEDGER
from ..pipeline.loop import Pipeline
from ..types import GroupKey
from .faults import Fault, script_faults
from .parts import PHASES, TASK, EndlessPrompts, SimulatedLearner, SimulatedPublisher, StepRecorder
from .rollout import SimulatedRollout
from .virtual_loop import run
from .workload import Acceptance, Workload

WARM_UP = 2
"""Steps that are not counted: buffers fill in them, and the first groups are all fresh."""
MATCH_BATCHES = 3
"""Batches over which the duration of a rollout is averaged."""
COLLECT_AFTER = 100_000
"""New objects after which Python's cycle collector runs. It finds next to nothing in a simulation."""


@dataclass(slots=True)
class Result:
    """What the steps after the warm-up gave. All times but the last two are virtual.

    Attributes:
        steps: Number of these steps.
        seconds: Their duration.
        trained_groups: Groups that they trained.
        trained_tokens: Tokens that they trained.
        engine_idle: Share of the time in which an engine had nothing to do, averaged over engines.
        engine_use: Tokens decoded over tokens at the saturated rate.
        learner_idle: Share of the time in which the learner made no step.
        learner_s: Seconds of a learner step.
        phases_s: Name of a phase of the training loop -> seconds in it.
        staleness: Learner version minus token version -> trained tokens, of the whole run.
        ends: Outcome of groups -> number of groups, of the whole run.
        acceptance: Share of the finished groups that the filters kept.
        bound_s: Duration of the fastest step possible: the learner's, or that of saturated engines with this
            acceptance.
        rows: Name of a metric -> its value at each step, the warm-up included.
        wall_s: Wall-clock seconds of the simulation.
        cpu_s: CPU seconds of the simulation.
    """

    steps: int
    seconds: float
    trained_groups: int
    trained_tokens: float
    engine_idle: float
    engine_use: float
    learner_idle: float
    learner_s: float
    phases_s: dict[str, float]
    staleness: dict[int, int]
    ends: dict[str, int]
    acceptance: float
    bound_s: float
    rows: dict[str, array[float]]
    wall_s: float
    cpu_s: float

    @property
    def step_s(self) -> float:
        """Mean duration of a step in seconds."""
        return self.seconds / self.steps

    @property
    def efficiency(self) -> float:
        """Duration of the fastest step possible over that of a step."""
        return self.bound_s / self.step_s

    @property
    def surplus_share(self) -> float:
        """Surplus groups / accepted groups."""
        surplus = self.ends.get("requeued/surplus", 0)
        return surplus / max(1, self.ends.get("buffered", 0))

    @property
    def staleness_mean(self) -> float:
        """Mean staleness of the trained tokens, in versions."""
        weighted = sum(age * tokens for age, tokens in self.staleness.items())
        return weighted / max(1, sum(self.staleness.values()))

    @property
    def staleness_max(self) -> int:
        """Largest staleness of a trained token, in versions."""
        return max(self.staleness, default=0)


def batch_rollout_s(workload: Workload) -> float:
    """Return the seconds in which one batch is rolled out with nothing else under way, averaged over MATCH_BATCHES.

    It is the duration of a learner step if rollout and training take equally long.
    """

    async def one_batch(first: int) -> float:
        loop = asyncio.get_running_loop()
        rollout = SimulatedRollout(workload, loop, lambda key: True)
        await asyncio.gather(*(rollout.run_group(GroupKey(0, first + i), TASK) for i in range(workload.prompts)))
        return loop.time()

    return sum(run(one_batch(i * workload.prompts)) for i in range(MATCH_BATCHES)) / MATCH_BATCHES


def learner_seconds(workload: Workload) -> float:
    """Return the seconds of a learner step.

    It is the workload's number, or the duration of a batch's rollout if the workload says "match".
    """
    seconds = workload.learner_seconds_per_step
    return batch_rollout_s(workload) if seconds == "match" else seconds


def simulate(
    workload: Workload,
    cfg: Config,
    *,
    acceptance: Acceptance | None = None,
    learner_s: float | None = None,
    faults: tuple[Fault, ...] = (),
    warm_up: int = WARM_UP,
) -> Result:
    """Simulate cfg.train.max_steps updates.

    Args:
        workload: The work.
        cfg: The configuration. Its batch must be the workload's (see `configure`).
        acceptance: Share of groups that the filters keep; None: the workload's.
        learner_s: Seconds of a learner step; None: the workload's.
        faults: What goes wrong.
        warm_up: Steps that are not counted.

    Raises:
        ConfigError: A fault is about an engine that does not exist.
    """
    seconds = learner_seconds(workload) if learner_s is None else learner_s
    with tempfile.TemporaryDirectory(prefix="tir-simulate-") as directory, seldom_collected():
        cfg = cfg.model_copy(update={"run_dir": Path(directory)})
        return run(_simulate(workload, cfg, acceptance or workload.acceptance, seconds, faults, warm_up))


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Let Python's cycle collector run less often inside the block: each run looks through all live trajectories."""
    thresholds = gc.get_threshold()
    gc.set_threshold(COLLECT_AFTER, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


async def _simulate(
    workload: Workload,
    cfg: Config,
    acceptance: Acceptance,
    learner_s: float,
    faults: tuple[Fault, ...],
    warm_up: int,
) -> Result:
    wall = time.perf_counter()
    cpu = time.process_time()
    loop = asyncio.get_running_loop()
    learner = SimulatedLearner(learner_s, cfg.minibatches, cfg.train.max_epochs, cfg.rollout.batch_size)
    recorder = StepRecorder()
    rollout = SimulatedRollout(
        workload,
        loop,
        lambda key: workload.accepted(key, acceptance.at(learner.version)),
        patience_s=cfg.env.step_timeout_s,
        keeps_kv=cfg.pipeline.keeps_kv,
    )
    recorder.probe = lambda: {
        "engine_tokens": sum(actor.engine.stats()["tokens"] for actor in rollout.actors),
        "engine_busy_s": sum(actor.engine.busy_s for actor in rollout.actors),
        "learner_busy_s": learner.busy_s,
    }
    script_faults(faults, rollout, loop)
    ledger = Ledger(cfg.run_dir / LEDGER)
    pipeline = Pipeline(
        cfg,
        prompts=EndlessPrompts(),
        rollout=rollout,
        learner=learner,
        publisher=SimulatedPublisher(rollout, workload.engine.weight_push_s),
        ledger=ledger,
        checkpoints=Checkpoints(cfg.run_dir / "ckpt", 1),
        observer=recorder,
    )
    slots = workload.engine.max_running
    async with fast_lane(cfg, pipeline.scheduler, rollout, longest=workload.longest, slots=slots):
        await pipeline.run()
    ledger.close()
    return _result(
        workload,
        recorder,
        learner,
        min(warm_up, len(recorder.rows["time"]) - 1),
        time.perf_counter() - wall,
        time.process_time() - cpu,
    )


def _result(
    workload: Workload, recorder: StepRecorder, learner: SimulatedLearner, warm_up: int, wall_s: float, cpu_s: float
) -> Result:
    """Return the result of the steps after the first `warm_up`."""
    rows = recorder.rows
    steps = len(rows["time"]) - warm_up
    engines = workload.engine.count

    def growth(name: str) -> float:
        """Return the growth of a running total after the warm-up."""
        return rows[name][-1] - (rows[name][warm_up - 1] if warm_up else 0.0)

    seconds = growth("time")
    groups = steps * workload.prompts
    acceptance = groups / (groups + growth("rejected"))
    saturated = workload.engine.saturated_tokens_per_s * engines
    return Result(
        steps=steps,
        seconds=seconds,
        trained_groups=groups,
        trained_tokens=sum(rows["trained_tokens"][warm_up:]),
        engine_idle=1 - growth("engine_busy_s") / (seconds * engines),
        engine_use=growth("engine_tokens") / (seconds * saturated),
        learner_idle=1 - growth("learner_busy_s") / seconds,
        learner_s=learner.seconds,
        phases_s={name: growth(f"{name}_s") for name in PHASES},
        staleness=dict(sorted(Counter(learner.staleness).items())),
        ends=dict(recorder.ends),
        acceptance=acceptance,
        bound_s=max(learner.seconds, workload.prompts / acceptance / workload.saturated_groups_per_s),
        rows=rows,
        wall_s=wall_s,
        cpu_s=cpu_s,
    )


def configure(workload: Workload, **pipeline: object) -> Config:
    """Return a configuration with the workload's batch and steps.

    Args:
        workload: The workload.
        pipeline: Settings of the section [pipeline], such as mode, max_staleness and depth. All other settings have
            their defaults.
    """
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
            "algo": {"advantage": {"estimator": "group_norm"}},  # it works with all settings of the pipeline
            "train": {"max_steps": workload.steps},
            "ckpt": {"save_steps": -1},
        }
    )
