"""A method from outside the package trains a step: its own reward, group reward, protocol, filters, estimator and
environment, in one file.

Here the engine is scripted, the learner only makes its rows, and the environment is called where it stands;
tests/e2e/test_guess_game.py runs the same recipe on the real stack.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager

import numpy as np

from openrlhf_tir.algorithms.advantages import get_estimator
from openrlhf_tir.config import own_files
from openrlhf_tir.config.settings import load
from openrlhf_tir.learner.rows import batch_samples, local_moments, to_rows
from openrlhf_tir.pipeline.checkpoints.checkpoint import Checkpoints
from openrlhf_tir.pipeline.ledger.ledger import Ledger
from openrlhf_tir.pipeline.loop import Pipeline
from openrlhf_tir.pipeline.observer import Observer
from openrlhf_tir.rewards.pool import RewardPool
from openrlhf_tir.rollout.group_judge import GroupJudge
from openrlhf_tir.rollout.group_runner import GroupRunner
from openrlhf_tir.types import Completion, StepReport, Task
from openrlhf_tir.user_code import plugins
from tests.contract.outside_method import lay_out
from tests.step_reply import reply_of
from tests.unit.rollout.test_episode import CharCodec
from tests.unit.rollout.test_group_judge import Here

from .fakes import FakeLearner, FakePrompts, FakePublisher, FakeRollout, MemoryMetrics, Silent


class Guesses:
    """Writes "I say", then a digit from 1 to 3, while digits are stops; else "bye"."""

    async def generate(self, token_ids, sampling, *, request_id):
        await asyncio.sleep(0)
        digit = random.Random(request_id).choice("123")
        text, stop = (f"I say {digit}", digit) if digit in sampling.stop else ("bye", "<eos>")
        ids = np.array([ord(c) for c in text], np.int32)
        return Completion(ids, np.full(len(ids), -0.5, np.float32), np.zeros(len(ids), np.int32), text, "stop", stop)


class OwnEnvs:
    """The class of env.file, called in this process."""

    def __init__(self, cfg) -> None:
        self.cls = plugins.load(plugins.ENVIRONMENT, cfg.env.file)

    @asynccontextmanager
    async def session(self, env, task, *, seed):
        own = self.cls()

        class Session:
            server = None

            async def reset(self):
                return await own.reset(task, seed)

            async def step(self, action, *, step_id):
                return reply_of(await own.step(action, 1.0), step_id)

        yield Session()


class OwnRollout(FakeRollout):
    def __init__(self, cfg) -> None:
        super().__init__()
        rewards = RewardPool(cfg.reward)
        rewards.workers = Here()
        self.groups = []
        self.runner = GroupRunner(cfg, Guesses(), CharCodec(), OwnEnvs(cfg), rewards, GroupJudge(cfg, rewards.workers))

    async def run_group(self, key, task):
        meta, group = await self.runner.run(key, task)
        self.groups.append((meta, group))
        return meta, group


class RowLearner(FakeLearner):
    """Makes the rows that a rank would train, with the estimator that the recipe names."""

    def __init__(self, cfg) -> None:
        super().__init__(seconds=0.0)
        self.cfg, self.rows = cfg, []

    async def step(self, batch):
        estimator = get_estimator(self.cfg.algo.advantage.estimator)
        samples = batch_samples(batch, [i.payload for i in batch.items], self.cfg, estimator)
        self.rows.append(to_rows(samples, local_moments(samples), self.version, self.cfg, estimator))
        self.version += 1
        return StepReport(self.version, {}, 0.0, batch.num_tokens)


class GuessPrompts(FakePrompts):
    def task(self, prompt):
        return Task("Guess.\n", "-", "guess", {"high": 3})


def test_a_method_from_outside_trains_with_two_files_of_its_own(tmp_path):
    recipe = lay_out(tmp_path)
    cfg = own_files.freeze(load(str(recipe), {"run_dir": str(tmp_path / "run")}))
    assert [path.parent for path in own_files.files_of(cfg)] == [tmp_path / "run/own"], (
        "one file of one's own, and the run has a copy"
    )
    rollout, learner, metrics = OwnRollout(cfg), RowLearner(cfg), MemoryMetrics()
    p = Pipeline(
        cfg,
        prompts=GuessPrompts(8, episodes=100),
        rollout=rollout,
        learner=learner,
        publisher=FakePublisher(rollout),
        ledger=Ledger(tmp_path / "ledger.jsonl"),
        checkpoints=Checkpoints(tmp_path / "ckpt", 2),
        observer=Observer(metrics, Silent(), Silent()),
    )
    asyncio.run(p.run())

    assert p.version == 2 and all(learner.rows), "two steps, each with something to train"
    assert all(np.isfinite(row.fields["advantages"]).all() for rows in learner.rows for row in rows)
    trajectories = [t for _, g in rollout.groups for t in g.valid]
    assert any(" -> Correct." in t.text for t in trajectories), (
        "own environment, shown by the own protocol with its option"
    )
    late = [t for t in trajectories if len(t.calls) == 2 and t.parts["correct"]]
    assert {t.reward / t.parts["before_group"] for t in late} == {0.5, 1.0}, (
        "two calls are worth half, unless nobody has needed fewer"
    )
    row = metrics.rows[2]
    assert row["reward/words"] > 0 and "accuracy" in row, "parts of the own reward are metrics"
    assert p.scheduler.method.counters.run["calls_so_far"] > 0 and {
        c["fewest"] for c in p.scheduler.method.counters.prompts.values() if "fewest" in c
    } <= {1.0, 2.0}
