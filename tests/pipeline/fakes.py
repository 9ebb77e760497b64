"""Fakes of the pipeline's ports: scripted latencies and outcomes, exact books of versions. No engine, no learner."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections import Counter
from collections.abc import Callable
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import numpy as np
import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.config import Pipeline as PipelineConfig
from openrlhf_tir.errors import InfraError
from openrlhf_tir.pipeline.checkpoints.checkpoint import Checkpoints
from openrlhf_tir.pipeline.ledger.ledger import Audit, Ledger
from openrlhf_tir.pipeline.loop import Pipeline
from openrlhf_tir.pipeline.observer import Observer
from openrlhf_tir.pushes import PublishReport
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.types import KEEP, Group, GroupKey, GroupMeta, Segment, StepReport, Task, Trajectory, Verdict


class FakePrompts:
    def __init__(self, n: int, episodes: int = 1) -> None:
        self.n, self.total, self.at = n, n * episodes, 0

    def next(self):
        if self.at >= self.total:
            return None
        self.at += 1
        return divmod(self.at - 1, self.n)

    def more(self):
        return self.at < self.total

    def in_place_of(self, prompt):
        return None

    def learned(self, ended):
        """The order is fixed: nothing is learned."""

    def facts(self):
        return {}

    def task(self, prompt):
        return Task(f"p{prompt}", "0", "echo")

    def state(self):
        return {"at": self.at}

    def restore(self, state):
        self.at = state["at"]


def group_of(
    key: GroupKey, version: int, verdict: Verdict = KEEP, failed: str | None = None
) -> tuple[GroupMeta, Group]:
    ids = np.arange(2, dtype=np.int32)
    seg = Segment("model", ids, np.zeros(2, np.float32), np.full(2, version, np.int32), "ab")
    trajectories = [
        Trajectory(i, ids, [seg], finish_reason="stop", reward=float(i), parts={"correct": float(i)}) for i in range(2)
    ]
    stats = {"calls": 0.0, "truncated": 0.0}
    meta = GroupMeta(
        key,
        verdict,
        [0, 1],
        [0.0, 1.0],
        [False, True],
        [False, True],
        [2, 2],
        [2, 2],
        2,
        version,
        failed=failed,
        stats=stats,
    )
    return meta, Group(key, Task("p", "0"), trajectories)


def fate_of(drop: float, fault: float) -> Callable[[random.Random], str]:
    """A group's fate by chance: dropped by a filter, failed in either way (half of `fault` each), or kept."""

    def fate(r: random.Random) -> str:
        x = r.random()
        return (
            "accuracy_high" if x < drop else "!env" if x < drop + fault / 2 else "?timeout" if x < drop + fault else ""
        )

    return fate


class FakeRollout:
    """Groups take `latency(rng)` virtual seconds; `fate(rng)` is "", a filter's reason, or "!fault" (raised), "?fault"
    (in the metadata)."""

    def __init__(self, seed: int = 0, latency=lambda r: 1.0, fate=lambda r: "") -> None:
        self.rng, self.latency, self.fate = random.Random(seed), latency, fate
        self.version, self.live = 0, 0

    async def run_group(self, key, task):
        seconds, fate, version = self.latency(self.rng), self.fate(self.rng), self.version
        self.live += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self.live -= 1
        if fate.startswith("!"):
            raise InfraError(fate[1:])
        if fate.startswith("?"):
            return group_of(key, version, failed=fate[1:])
        return group_of(key, version, Verdict(not fate, fate))

    async def fetch(self, payloads):
        return list(payloads)

    async def store(self, group):
        return group

    def where(self, key):
        return "on fake"

    def engine_stats(self):
        return {}


class FakeLearner:
    """`write_seconds`: how long the disk takes for a checkpoint, in the background."""

    def __init__(self, seconds: float = 1.0, crash_at: int | None = None, write_seconds: float = 0.0) -> None:
        self.version, self.seconds, self.crash_at, self.write_seconds = 0, seconds, crash_at, write_seconds
        self.trained: list[tuple[int, GroupKey, int]] = []
        self.begun: list[tuple[int, GroupKey, int]] = []
        """What was accumulated since the last step."""

    async def accumulate(self, part):
        await asyncio.sleep(self.seconds / 4)
        assert part.step == self.version
        self.begun += [(self.version, item.meta.key, item.meta.oldest_version) for item in part.items]

    async def step(self, batch):
        await asyncio.sleep(self.seconds)
        if self.version == self.crash_at:
            raise RuntimeError("crash")
        self.trained, self.begun = self.trained + self.begun, []
        for cut in batch.updates:
            self.trained += [
                (self.version, batch.items[b].meta.key, batch.items[b].meta.oldest_version)
                for b in sorted({b for b, _ in cut})
            ]
            self.version += 1
        return StepReport(self.version, {}, self.seconds, batch.num_tokens)

    async def save(self, directory: Path):
        (directory / "learner.json").write_text(json.dumps({"version": self.version}))

    async def written(self):
        await asyncio.sleep(self.write_seconds)

    async def load(self, directory: Path):
        self.version, self.begun = json.loads((directory / "learner.json").read_text())["version"], []
        return self.version

    async def export(self, directory: Path):
        directory.mkdir()
        (directory / "version").write_text(str(self.version))


class FakePublisher:
    def __init__(self, rollout: FakeRollout, seconds: float = 0.1) -> None:
        self.rollout, self.seconds, self.live_at_push, self.versions = rollout, seconds, [], []

    @asynccontextmanager
    async def exclusive_learner(self):
        yield

    async def publish(self, version, *, must_differ=False):
        self.live_at_push.append(self.rollout.live)
        self.versions.append(version)
        await asyncio.sleep(self.seconds)
        self.rollout.version = version
        return PublishReport(version, self.seconds, "digest", 0.0)


class MemoryMetrics:
    def __init__(self) -> None:
        self.rows: dict[int, dict] = {}
        self.evaluated: list[int] = []
        """The version of each evaluation that is recorded."""

    def log(self, step, row):
        self.rows[step] = dict(row)
        self.evaluated += [step] * any(name.startswith("eval/") for name in row)

    def truncate_after(self, step, evaluated=True):
        self.rows = {s: r for s, r in self.rows.items() if s <= step}
        self.evaluated = [s for s in self.evaluated if s <= step - (not evaluated)]


class Silent:
    """A trace and a progress display that show nothing."""

    def add(self, *args, **kwargs): ...
    def update(self, *args): ...
    def evaluated(self, *args): ...
    def group(self, *args): ...
    def notice(self, lines): ...
    @contextmanager
    def span(self, *args):
        yield


GROUP_S = 10


def pipeline(run_dir: Path, *, prompts=None, rollout=None, learner=None, metrics=None, **flags) -> Pipeline:
    """A Pipeline on fakes. flags: mode, S, B, max_steps, depth (default: as many as staleness allows), save_steps,
    retries, stall, endless (neither unused groups nor gradients that are not finite end the run), push_every, fill,
    early, evaluate (a coroutine function), eval_steps, method_errors; train, eval, sampling (rollout), ckpt: more
    fields of these sections."""
    rollout = rollout or FakeRollout()
    mode, B = flags.get("mode", "pipeline"), flags.get("B", 2)
    S = flags.get("S", 2 if mode == "pipeline" else None)
    allowed = (
        (PipelineConfig(mode=mode, max_staleness=S).requested_staleness + 1) * B
        if mode.startswith("pipeline")
        else None
    )
    cfg = Config.model_validate(
        {
            "run_dir": run_dir,
            "actor": {"num_gpus_per_node": 1},
            "rollout": {
                "batch_size": B,
                "n_samples_per_prompt": 2,
                "group_deadline_s": GROUP_S,
                **flags.get("sampling", {}),
            },
            "pipeline": {
                "mode": mode,
                "max_staleness": S,
                "depth": flags.get("depth", allowed),
                "push_every": flags.get("push_every", 1),
                "fill_batches": flags.get("fill", 1),
                "early_accumulation": flags.get("early", "off"),
            },
            "timeouts": dict.fromkeys(  # with the group's deadline the watchdog's patience
                ("push_s", "learner_s"), flags.get("stall", 1000) - GROUP_S
            ),
            "algo": {"advantage": {"estimator": "rloo"}},
            "train": {
                "max_steps": flags.get("max_steps", 10),
                **flags.get("train", {}),
            },
            "ckpt": {"save_steps": flags.get("save_steps", -1), **flags.get("ckpt", {})},
            "eval": {"steps": flags.get("eval_steps", -1), **flags.get("eval", {})},
        }
    )
    made = Pipeline(
        cfg,
        prompts=prompts or FakePrompts(1000),
        rollout=rollout,
        learner=learner or FakeLearner(),
        publisher=FakePublisher(rollout),
        ledger=Ledger(run_dir / "ledger.jsonl"),
        checkpoints=Checkpoints(run_dir / "ckpt", cfg.ckpt.max_num),
        observer=Observer(metrics or MemoryMetrics(), Silent(), Silent()),
        measure=flags.get("evaluate"),
        method_errors=flags.get("method_errors"),
    )
    made.scheduler.max_retries = flags.get("retries", 2)
    if flags.get("endless"):
        made.health.max_unused = made.health.max_nonfinite = math.inf
    return made


def seconds_of(p: Pipeline) -> float:
    """Virtual seconds of the whole run."""

    async def timed() -> float:
        start = asyncio.get_running_loop().time()
        await p.run()
        return asyncio.get_running_loop().time() - start

    return run(timed())


def what_stops(p: Pipeline, kind: type[Exception]) -> str:
    """Run `p`, which must end by one error of this kind: what it says."""
    with pytest.raises(ExceptionGroup) as e:
        run(p.run())
    (error,) = e.value.exceptions
    assert isinstance(error, kind)
    return str(error)


def ages(learner: FakeLearner) -> list[int]:
    """Version at training - oldest token's version, of each trained group."""
    return [version - oldest for version, _, oldest in learner.trained]


def ends_of(report: Audit, prompts: int) -> Counter[str]:
    """How many prompts ended in which way; each exactly once, with nothing left open."""
    assert report.errors == report.open == []
    ends = Counter({name: n for name, n in report.ended.items() if not name.startswith("requeued")})
    assert ends.total() == prompts
    return ends
