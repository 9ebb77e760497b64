"""What the process of test_zero_staleness.py does: the same training three times on the real learner and the
deterministic engine.

    sequential      one loop, written out here: roll B kept groups one after the other, step, push, repeat. Nothing of
                    pipeline/.
    asynchronous    Pipeline in mode `sync` (S = 0): B groups at once, answers in whatever order, checkpoints in the
                    background
    colocated       the same, engine and learner taking turns (train.colocate_all); stand-ins move nothing, but keep to
                    the order

Environments take a random time that no seed fixes, so no two asynchronous runs interleave alike.
"""

from __future__ import annotations

import asyncio
import pickle
import random
from contextlib import asynccontextmanager
from pathlib import Path

from miniatures.toy.task import draw
from openrlhf_tir.config import Config
from openrlhf_tir.engines.local_engine import LocalEngine
from openrlhf_tir.learner.balance import assign_ranks
from openrlhf_tir.pipeline.checkpoints.checkpoint import Checkpoints
from openrlhf_tir.pipeline.colocation.time_share import GpuTimeShare
from openrlhf_tir.pipeline.colocation.time_shared import TimeSharedPublisher, TimeSharedRollout
from openrlhf_tir.pipeline.ledger.ledger import Ledger, audit
from openrlhf_tir.pipeline.loop import Pipeline
from openrlhf_tir.pipeline.observer import Observer
from openrlhf_tir.rollout.group_runner import GroupRunner
from openrlhf_tir.simulation.parts import EndlessPrompts
from openrlhf_tir.types import BatchItem, GroupKey, StepReport, Task, TrainBatch
from openrlhf_tir.waiting.deadlines import Deadline
from openrlhf_tir.weights.publisher import WeightPublisher
from tests.pipeline.fakes import MemoryMetrics, Silent
from tests.unit.filters.in_process import build

from .parity_reward import parity

STEPS = 4
CANARY = [[10, 20, 30]]


def config(model: Path, run_dir: Path) -> Config:
    return Config(
        run_dir=run_dir,
        actor={"model_name_or_path": str(model), "learning_rate": 2e-4, "num_gpus_per_node": 1},
        ds={"param_dtype": "fp32", "attn_implementation": "eager"},
        rollout={"batch_size": 3, "n_samples_per_prompt": 3, "max_new_tokens": 12},
        train={"max_steps": STEPS, "micro_batch_size": 4, "full_determinism_enable": True},
        pipeline={"mode": "sync"},
        data={"max_len": 128},
        ckpt={"save_steps": 2},
    )


class Prompts(EndlessPrompts):
    """Toy problems, the i-th from seed i."""

    def task(self, prompt: int) -> Task:
        problem = draw(random.Random(prompt), "train")
        return Task(f"User: {problem.question}\nAssistant:", str(problem.answer), "unsteady")


class UnsteadyEnvs:
    """An environment that opens with a line of its own (masked, never trained) after up to 30 ms."""

    @asynccontextmanager
    async def session(self, env, task, *, seed):
        class Session:
            server = None

            async def reset(self) -> str:
                await asyncio.sleep(random.SystemRandom().uniform(0, 0.03))
                return "\nGo: "

        yield Session()


class ParityReward:
    async def score(self, trajectory, task):
        await asyncio.sleep(random.SystemRandom().uniform(0, 0.01))
        return parity(trajectory, task, None)


class OneRank:
    """The real learner, one rank in this process, as the pipeline's Learner; keeps what it reported."""

    def __init__(self, rank) -> None:
        self.rank, self.reports, self.moves = rank, [], []

    @property
    def version(self) -> int:
        return self.rank.version

    async def step(self, batch: TrainBatch) -> StepReport:
        metrics = await asyncio.to_thread(self.rank.step, batch, [item.payload for item in batch.items])
        self.reports.append((metrics, [str(item.meta.key) for item in batch.items]))
        return StepReport(self.version, metrics, 0.0, batch.num_tokens)

    async def publish(self, path: Path) -> str:
        return self.rank.publish(path)

    async def score(self, sequences):
        return self.rank.score(sequences)

    async def save(self, directory: Path) -> None:
        self.rank.save(directory)

    async def written(self) -> None:
        await asyncio.to_thread(self.rank.written)

    async def onload(self) -> None:
        self.moves.append("onload")
        self.rank.onload()

    async def offload(self) -> None:
        self.moves.append("offload")
        self.rank.offload()


class LocalRollout:
    """The group runner as the pipeline's Rollout, in this process. The first prompt is not the first to finish."""

    def __init__(self, runner: GroupRunner) -> None:
        self.runner, self.finished, self.another = runner, [], asyncio.Event()

    async def run_group(self, key, task):
        meta, group = await self.runner.run(key, task)
        if key.prompt:
            self.another.set()
        await self.another.wait()
        self.finished.append(key.prompt)
        return meta, group

    async def fetch(self, payloads):
        return list(payloads)

    def where(self, key) -> str:
        return "here"

    def engine_stats(self) -> dict[str, float]:
        return {}


async def sequential(cfg: Config, learner: OneRank, runner: GroupRunner, publisher: WeightPublisher) -> list[str]:
    """Returns the digest of the weights after every step."""
    prompts, digests = Prompts(), []
    await publisher.publish(0)
    for step in range(STEPS):
        items: list[BatchItem] = []
        while len(items) < cfg.rollout.batch_size:
            assert prompts.at < 100, (
                "the filter drops everything: the model has learned the reward, and no step will come"
            )
            epoch, prompt = prompts.next()
            meta, group = await runner.run(GroupKey(epoch, prompt), prompts.task(prompt))
            if meta.verdict.keep:
                items.append(BatchItem(meta, group))
        await learner.step(TrainBatch(step, items, assign_ranks([item.meta for item in items], 1)))
        digests.append((await publisher.publish(learner.version)).digest)
    return digests


async def asynchronous(
    cfg: Config, learner: OneRank, runner: GroupRunner, publisher: WeightPublisher, turns: GpuTimeShare | None = None
) -> tuple[list[str], list[int], list[str]]:
    """Returns the digests, the prompts in the order in which their groups finished, and what the audit finds wrong."""
    rollout, digests, publish = LocalRollout(runner), [], publisher.publish

    async def recorded(version: int, *, must_differ: bool = False):
        report = await publish(version, must_differ=must_differ)
        if version:
            digests.append(report.digest)
        return report

    publisher.publish = recorded
    pipeline = Pipeline(
        cfg,
        prompts=Prompts(),
        rollout=TimeSharedRollout(rollout, turns) if turns else rollout,
        learner=learner,
        publisher=TimeSharedPublisher(publisher, turns) if turns else publisher,
        ledger=Ledger(cfg.run_dir / "ledger.jsonl"),
        checkpoints=Checkpoints(cfg.run_dir / "ckpt", 2),
        observer=Observer(MemoryMetrics(), Silent(), Silent()),
    )
    await pipeline.run()
    return digests, rollout.finished, audit(pipeline.scheduler.ledger.path).errors


async def colocated(
    cfg: Config, learner: OneRank, runner: GroupRunner, publisher: WeightPublisher
) -> tuple[list[str], list[str]]:
    """Returns the digests, and how often the learner's states went and came."""
    turns = GpuTimeShare(publisher.engines, Deadline(600.0, "a test's"), Deadline(600.0, "a test's"))
    async with turns.learning():
        turns.learner = learner  # its ranks have started: all they have is on the GPU
    digests, _, _ = await asynchronous(cfg, learner, runner, publisher, turns)
    return digests, learner.moves


async def train(mode, cfg: Config, rank, model: Path):
    from openrlhf_tir.engines.torch_engine import TorchEngine

    engine, learner = await TorchEngine.start(str(model), cfg), OneRank(rank)
    runner = GroupRunner(cfg, engine, engine.codec, UnsteadyEnvs(), ParityReward(), build(cfg.filter))
    publisher = WeightPublisher(learner, [LocalEngine(engine)], cfg.run_dir / "push", CANARY, tolerance=1e-4)
    return await mode(cfg, learner, runner, publisher), learner.reports


def run(rank: int, world: int, port: int, model: Path, out: Path) -> None:
    import torch

    from openrlhf_tir.learner.zero3 import Zero3Rank

    torch.set_num_threads(1)
    results = {}
    for mode in (sequential, asynchronous, colocated):
        cfg = config(model, out / mode.__name__)
        cfg.run_dir.mkdir()
        results[mode.__name__] = asyncio.run(train(mode, cfg, Zero3Rank(cfg, rank, world, "127.0.0.1", port), model))
    (out / "results.pkl").write_bytes(pickle.dumps(results))
