"""A small world of rollout actors for the loop: the real fleet, router and weight publisher, with actors and a learner
that break when told.

Everything takes virtual time, in multiples of 1/16 s, which add up exactly: so many things happen at the same moment,
and a fault can come between any two of them. An actor that hangs never answers again; one that dies fails all that it
was asked, as Ray does. Log-probs are minus the version of the weights, so the canary proves what it should.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from openrlhf_tir.cluster.fleet import Fleet
from openrlhf_tir.config import Config
from openrlhf_tir.data.curriculum import Settings
from openrlhf_tir.data.stream import PromptLane, PromptStream
from openrlhf_tir.errors import EngineGone, EvaluationFailed, LearnerDied, WeightsUnverified
from openrlhf_tir.pipeline.checkpoints.checkpoint import Checkpoints
from openrlhf_tir.pipeline.ledger.ledger import Ledger
from openrlhf_tir.pipeline.loop import Pipeline
from openrlhf_tir.pipeline.observer import Observer
from openrlhf_tir.types import BatchItem, Completion, CounterUpdate, GroupKey, StepReport, Task, Verdict
from openrlhf_tir.waiting.deadlines import Deadline
from openrlhf_tir.weights.publisher import WeightPublisher

from ...contract.called_in_process import CalledInProcess
from ..fakes import FakePrompts, MemoryMetrics, Silent, group_of

EVALUATION = -1
NO_START = "told not to start"
PUSH_S = 0.125


class LearnerGone(LearnerDied):
    """A rank, as the cluster tells of it."""


class Actor(CalledInProcess):
    """One rollout actor: what Fleet and WeightPublisher need of it."""

    def __init__(self, world: World, index: int) -> None:
        self.world, self.index, self.name = world, index, f"rollout-{index}"
        self.version, self.hung, self.refuses, self.dead = 0, False, False, False
        self._pending: set[asyncio.Future] = set()

    async def answer(self, seconds: float) -> None:
        """Returns after so long; never, while it hangs. Raises EngineGone when it dies."""
        if self.dead:
            raise EngineGone(f"{self.name} is dead")
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._pending.add(future)
        loop.call_later(seconds, lambda: None if self.hung or future.done() else future.set_result(None))
        try:
            await future
        finally:
            self._pending.discard(future)

    def kill(self) -> None:
        self.dead = True
        for future in self._pending:
            if not future.done():
                future.set_exception(EngineGone(f"{self.name} died"))

    async def stop(self) -> None:
        self.kill()

    async def heartbeat(self) -> None:
        await self.answer(0.0625)

    async def update_weights(self, path: Path, version: int, digest: str, canary, link=None) -> list[Completion]:
        await self.answer(PUSH_S)
        if json.loads(path.read_text())["digest"] != digest:
            raise WeightsUnverified("the file is another one")
        if self.refuses:
            raise WeightsUnverified("told to refuse")
        self.version = version
        return await self.sample_canary(*canary)

    async def sample_canary(self, prompt_ids, max_tokens: int, seed: int) -> list[Completion]:
        ids, logprobs = np.zeros(max_tokens, np.int32), np.full(max_tokens, -float(self.version), np.float32)
        return [
            Completion(ids, logprobs, np.full(max_tokens, self.version, np.int32), "", "length") for _ in prompt_ids
        ]

    async def confirm_weights(self, version: int) -> dict[str, float]:
        await self.answer(0.0)
        return {}

    async def discard(self, why: str) -> None:
        self.world.fleet.mark_lost(self, why)


class BlendedPrompts:
    """The prompts of a real stream: environments with shares (two thirds `a`, one third `b`), or a curriculum."""

    def __init__(self, n: int, episodes: int, seed: int, *, shares: bool, curriculum: bool) -> None:
        third = n - max(1, n // 3)
        self._lanes = [PromptLane(range(third), "a", 2.0), PromptLane(range(third, n), "b", 1.0)] if shares else None
        settings = Settings(2, 0.25, 4.0, [(0.0, 1.0)] * n) if curriculum else None
        stream = PromptStream(n, seed, True, episodes, self._lanes, settings)
        self.next, self.more, self.in_place_of = stream.next, stream.more, stream.in_place_of
        self.state, self.restore = stream.state, stream.restore
        self.learned, self.facts = stream.learned, stream.facts

    def task(self, prompt: int) -> Task:
        env = "b" if self._lanes and prompt in self._lanes[1].prompts else "a"
        return Task(f"p{prompt}", "0", env)


class World:
    """Rollout for the loop. `latency(rng)` in virtual seconds; `drop`: share of groups that a filter rejects.

    What a group is (dropped, its lengths, what it asks of the counters) depends on the run's seed, its epoch and its
    prompt only; when it ends depends on `seed`, which is another one in every life.
    """

    def __init__(
        self,
        seed: int,
        *,
        actors: int = 2,
        latency=lambda r: 1.0,
        drop: float = 0.0,
        start_s: float = 3.0,
        run_seed: int = 0,
        counting: bool = False,
    ) -> None:
        self.run_seed, self.counting = run_seed, counting
        self.rng, self.latency, self.drop, self.start_s = random.Random(seed), latency, drop, start_s
        self.fleet: Fleet[Actor] = Fleet(self._spawn, size=actors, unresponsive=Deadline(20.0, "unresponsive"))
        self.failing_starts = 0
        self.env_hangs = 0
        """So many of the groups to come never get an answer from their environment, until their deadline."""

    async def _spawn(self, index: int) -> Actor:
        await asyncio.sleep(self.start_s)
        if self.failing_starts:
            self.failing_starts -= 1
            raise EngineGone(NO_START)
        return Actor(self, index)

    async def run_group(self, key: GroupKey, task, wanted: int | None = None):
        """`wanted`: the version that is evaluated."""
        seconds, facts = self.latency(self.rng), random.Random(f"{self.run_seed} {key.epoch} {key.prompt}")
        dropped = facts.random() < self.drop
        if self.env_hangs and key.epoch != EVALUATION:
            self.env_hangs -= 1
            seconds = 30.0  # the group's deadline
            dropped = None
        async with self.fleet.router.place(task.prompt, 1, lambda a: wanted in (None, a.version)) as actor:
            version = actor.version
            await actor.answer(seconds)
        if dropped is None:
            return group_of(key, version, failed="deadline")
        meta, group = group_of(key, version, Verdict(not dropped, "accuracy_high" if dropped else ""))
        if self.counting:
            model_tokens = [facts.choice([100, 900, 2500, 5500]) for _ in meta.model_tokens]
            changes = [
                CounterUpdate("run", "groups", "add", 1.0),
                CounterUpdate("run", "sum", "add", facts.random()),
                CounterUpdate("prompt", "seen", "add", 1.0),
            ]
            meta = replace(meta, env=task.env, model_tokens=model_tokens, changes=changes)
        return meta, group

    async def fetch(self, payloads):
        return list(payloads)

    async def store(self, group):
        return group

    def where(self, key: GroupKey) -> str:
        return "somewhere"

    def engine_stats(self) -> dict[str, float]:
        return {}

    # --- what goes wrong

    def pick(self, i: int) -> Actor | None:
        return self.fleet.members[i % len(self.fleet.members)] if self.fleet.members else None

    def kill(self, i: int) -> None:
        if actor := self.pick(i):
            self.fleet.mark_lost(actor, "killed by the test")

    def kill_all(self, i: int) -> None:
        for actor in list(self.fleet.members):
            self.fleet.mark_lost(actor, "killed by the test")

    def hang(self, i: int) -> None:
        if actor := self.pick(i):
            actor.hung = True

    def refuse(self, i: int) -> None:
        if actor := self.pick(i):
            actor.refuses = True


class WorldLearner:
    """`lineage` is what its weights were trained on: it travels with the checkpoint, to be compared with the ledger."""

    def __init__(self, max_staleness: int, step_s: float = 1.0, write_s: float = 0.0, copy_s: float = 0.0625) -> None:
        self.version, self.S, self.step_s, self.write_s = 0, max_staleness, step_s, write_s
        self.copy_s = copy_s
        """Seconds of a checkpoint's copy, in which the learner can do nothing else."""
        self.lineage: list[tuple[int, int]] = []
        self.faults: Counter[str] = Counter()
        """Name -> how many of the next calls go wrong so: die, hang, nan (of a step), mute (no weights are given, for
        ever), copy (a checkpoint's copy never ends), full (of a write), stuck (a write that never ends)."""
        self.stale: list[GroupKey] = []
        self.begun: list[BatchItem] = []
        """What was accumulated since the last step."""
        self.busy = False
        self.given_up = False
        """It died or its work was cancelled, as the run ends: what an engine that still joins asks comes too late."""
        self.stopping = lambda: False
        """Whether the run was asked to stop."""
        self.overlaps: list[str] = []
        """What was asked while it was at work, which it could not answer then."""
        self.sizes: list[int] = []
        """Groups of each step, its parts included."""

    def _strikes(self, fault: str) -> bool:
        struck = self.faults[fault] > 0
        self.faults[fault] -= struck
        return struck

    def _asked(self, what: str) -> None:
        if self.busy and not self.given_up:
            self.overlaps.append(what)

    async def _works(self, seconds: float, batch) -> None:
        self._asked("step")
        if self.stopping():
            self.overlaps.append("work that began after the stop")
        if not batch.items or batch.step != self.version:
            self.overlaps.append(f"{len(batch.items)} groups of version {batch.step} at {self.version}")
        self.busy = True
        try:
            await asyncio.sleep(seconds)
            if self._strikes("hang"):
                await asyncio.get_running_loop().create_future()
            if self._strikes("die"):
                raise LearnerGone("told to die")
        except BaseException:
            self.given_up = True
            raise
        self.busy = False

    async def accumulate(self, part) -> None:
        await self._works(0.25, part)
        self.begun += part.items

    async def step(self, batch) -> StepReport:
        await self._works(self.step_s, batch)
        items, self.begun = self.begun + batch.items, []
        if self._strikes("nan"):
            return StepReport(self.version, {"grad_norm": float("nan"), "lr": 1.0}, self.step_s, 1)
        self.stale += [i.meta.key for i in items if self.version - i.meta.oldest_version > self.S]
        self.lineage += [(i.meta.key.epoch, i.meta.key.prompt) for i in items]
        self.sizes.append(len(items))
        self.version += 1
        return StepReport(self.version, {"grad_norm": 1.0, "lr": 1.0}, self.step_s, batch.num_tokens)

    async def publish(self, path: Path) -> str:
        version = self.version
        self._asked("publish")
        await asyncio.sleep(PUSH_S)
        if self._strikes("mute"):
            await asyncio.get_running_loop().create_future()
        path.write_text(json.dumps({"digest": f"digest {version}"}))
        return f"digest {version}"

    async def score(self, sequences):
        version = self.version
        self._asked("score")
        await asyncio.sleep(PUSH_S)
        assert self.version == version, "scored while it stepped"
        return [np.full(len(s) - 1, -float(version)) for s in sequences]

    async def save(self, directory: Path) -> None:
        self._asked("save")
        await asyncio.sleep(self.copy_s)
        if self._strikes("copy"):
            await asyncio.get_running_loop().create_future()
        (directory / "learner.json").write_text(json.dumps({"version": self.version, "lineage": self.lineage}))

    async def written(self) -> None:
        await asyncio.sleep(self.write_s)
        if self._strikes("stuck"):
            await asyncio.get_running_loop().create_future()
        if self._strikes("full"):
            raise OSError(28, "No space left on device")

    async def load(self, directory: Path) -> int:
        said = json.loads((directory / "learner.json").read_text())
        self.version, self.lineage = said["version"], [tuple(prompt) for prompt in said["lineage"]]
        self.begun = []
        return self.version


class Evaluation:
    """Two held-out groups through the same actors; told to, it fails or hangs."""

    def __init__(self, world: World) -> None:
        self.world, self.faults = world, Counter()
        self.version = lambda: 0
        """Of the weights that are evaluated."""
        self.mixed: list[str] = []
        """Samples of another version, each beside the one that was evaluated."""

    async def __call__(self) -> dict[str, float]:
        if self.faults["fail"] > 0:
            self.faults["fail"] -= 1
            raise EvaluationFailed("told to fail", 3, 4)
        if self.faults["hang"] > 0:
            self.faults["hang"] -= 1
            await asyncio.get_running_loop().create_future()
        version = self.version()
        async with asyncio.TaskGroup() as tasks:
            samples = [
                tasks.create_task(self.world.run_group(GroupKey(EVALUATION, i), FakePrompts(1).task(i), version))
                for i in range(2)
            ]
        self.mixed += [f"{version}: {v}" for s in samples if (v := s.result()[0].oldest_version) != version]
        return {"eval/accuracy": self.world.rng.random()}


def pipeline_in(
    world: World,
    learner: WorldLearner,
    run_dir: Path,
    *,
    prompts: int,
    sections: dict,
    episodes: int = 1,
    metrics=None,
    order=None,
) -> Pipeline:
    """The loop in that world. `sections`: of the configuration; to choose: rollout.batch_size and pipeline. `order`:
    the prompts, if not one after the other."""
    cfg = Config.model_validate(
        {
            "run_dir": run_dir,
            "actor": {"num_gpus_per_node": 1},
            "ckpt": {"save_steps": -1},
            "algo": {"advantage": {"estimator": "rloo"}},
            **sections,
            "rollout": {"n_samples_per_prompt": 2, "group_deadline_s": 30, **sections.get("rollout", {})},
            "timeouts": {"push_s": 470, "learner_s": 470},  # with the group's deadline the watchdog's patience
        }
    )
    directory = run_dir / "push"
    publisher = WeightPublisher(learner, world.fleet.members, directory, [[1, 2]], tolerance=1e-4, canary_tokens=2)

    async def prove(actor: Actor, admit) -> None:
        await publisher.join(actor, admit)

    world.fleet.prove = prove
    evaluation = Evaluation(world)
    pipeline = Pipeline(
        cfg,
        prompts=order or FakePrompts(prompts, episodes),
        rollout=world,
        learner=learner,
        publisher=publisher,
        ledger=Ledger(run_dir / "ledger.jsonl"),
        checkpoints=Checkpoints(run_dir / "ckpt", 2),
        observer=Observer(metrics or MemoryMetrics(), Silent(), Silent()),
        measure=evaluation,
    )
    pipeline.evaluation = evaluation
    evaluation.version = lambda: pipeline.scheduler.pushed_version
    learner.stopping = lambda: pipeline.stop.reason is not None
    return pipeline


async def live(world: World, pipeline: Pipeline, *, resume: bool = False) -> None:
    """One process: the fleet comes up, the loop runs, everything is ended."""
    try:
        await world.fleet.start()
        await pipeline.run(resume=resume)
    finally:
        await world.fleet.stop()
        pipeline.scheduler.ledger.close()
