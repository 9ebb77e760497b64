"""With a staleness of 0 a run does not depend on which group ends first, nor on kill -9 and stops in between.

Every seed draws a run with environments that have shares, a curriculum, filters, length_balance, run counters that the
reward reads, repeated attempts and a checkpoint interval. The run is played with two different latencies, and once more
with crashes and stops; all of them must train the same prompts in the same order, with the same counters.
"""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from openrlhf_tir.data.curriculum import Settings
from openrlhf_tir.data.stream import PromptLane, PromptStream
from openrlhf_tir.errors import InfraError, Stopped
from openrlhf_tir.pipeline.checkpoints import checkpoint
from openrlhf_tir.pipeline.ledger.audit import audit
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.types import KEEP, CounterUpdate, StepReport, Task, Verdict
from tests.ordinary import ordinary_first

from .fakes import FakeLearner, FakeRollout, pipeline

SAMPLES = 4
PROMPTS = 40
FIRST, FAST, LONG, PER_TEST = 0, 24, 4000, 8


@dataclass(frozen=True)
class Setup:
    """One random run. `at_once`: rollout.vllm_generate_batch_size; `hopeless`: share of prompts that always fail."""

    seed: int
    B: int
    shares: bool
    two_data_sets: bool
    curriculum: bool
    length_balance: bool
    drop: float
    fault: float
    hopeless: float
    episodes: int
    max_steps: int
    save_steps: int
    at_once: int | None


def setup_of(seed: int) -> Setup:
    r = random.Random(seed)
    batch = r.randint(1, 6)
    return Setup(
        seed=seed,
        B=batch,
        shares=r.random() < 0.7,
        two_data_sets=r.random() < 0.5,
        curriculum=r.random() < 0.4,
        length_balance=r.random() < 0.5,
        drop=r.choice([0.0, 0.3, 0.6]),
        fault=r.choice([0.0, 0.0, 0.3]),
        hopeless=r.choice([0.0, 0.1]),
        episodes=r.randint(1, 3),
        max_steps=r.choice([4, 1000]),
        save_steps=r.choice([1, 2, 3]),
        at_once=r.choice([None, None, min(2, batch)]),
    )


class Prompts:
    """40 prompts; with shares 28 of environment `a` (two thirds) and 12 of `b`."""

    def __init__(self, setup: Setup) -> None:
        lanes = None
        if setup.shares and setup.two_data_sets:
            a, c = range(0, 16), range(16, 28)
            lanes = [
                PromptLane(a, "a", 2.0, 0, 0.7),
                PromptLane(c, "a", 2.0, 1, 0.3),
                PromptLane(range(28, 40), "b", 1.0),
            ]
        elif setup.shares:
            lanes = [PromptLane(range(0, 28), "a", 2.0), PromptLane(range(28, 40), "b", 1.0)]
        settings = Settings(SAMPLES, 0.25, 4.0, [(0.0, 1.0)] * PROMPTS) if setup.curriculum else None
        self.shares = setup.shares
        stream = PromptStream(PROMPTS, setup.seed, True, setup.episodes, lanes, settings)
        self.next, self.more, self.in_place_of = stream.next, stream.more, stream.in_place_of
        self.state, self.restore = stream.state, stream.restore
        self.learned, self.facts = stream.learned, stream.facts

    def task(self, prompt: int) -> Task:
        return Task(f"p{prompt}", "0", "b" if self.shares and prompt >= 28 else "a")


class Rollout(FakeRollout):
    """What a group is depends on its epoch, its prompt and what its reward reads; when it ends, on `timing`."""

    def __init__(self, setup: Setup, timing: int) -> None:
        super().__init__(timing, latency=lambda r: r.choice([0.125, 0.5, 1.0, 1.0, 4.0, 9.0]))
        self.setup = setup
        self.told: dict[tuple[int, int], tuple] = {}

    async def run_group(self, key, task):
        facts = (dict(task.run.counters), dict(task.run.prompt), task.run.update)
        r = random.Random(f"{self.setup.seed} {key.epoch} {key.prompt} {sorted(facts[0].items())}")
        hopeless = r.random() < self.setup.hopeless
        correct = [r.random() < 0.5 for _ in range(SAMPLES)]
        tokens = [r.choice([100, 900, 2500, 5500, 9000]) for _ in range(SAMPLES)]
        dropped = r.random() < self.setup.drop
        step = r.random()
        fails = hopeless or (key.attempt < 2 and self.rng.random() < self.setup.fault)
        meta, group = await super().run_group(key, task)
        if fails:
            raise InfraError("env_error")
        self.told[key.epoch, key.prompt] = facts
        changes = [
            CounterUpdate("run", "groups", "add", 1.0),
            CounterUpdate("run", "sum", "add", step),
            CounterUpdate("prompt", "seen", "add", 1.0),
        ]
        verdict = Verdict(False, "accuracy_high") if dropped else KEEP
        n = SAMPLES
        meta = replace(
            meta, verdict=verdict, index=list(range(n)), rewards=[float(c) for c in correct], correct=correct,
            used_code=correct, response_tokens=tokens, model_tokens=tokens, env=task.env, changes=changes,
        )  # fmt: skip
        return meta, group


class Learner(FakeLearner):
    """Its weights are what it was trained on, with what the reward had read of the counters."""

    def __init__(self, pipeline_of) -> None:
        super().__init__(seconds=1.0)
        self.pipeline_of, self.lineage = pipeline_of, []
        self.begun_after_a_stop = 0

    async def step(self, batch):
        self.begun_after_a_stop += self.pipeline_of().stop.reason is not None
        await asyncio.sleep(self.seconds)
        self.lineage.append([(item.meta.key.epoch, item.meta.key.prompt) for item in batch.items])
        self.version += 1
        return StepReport(self.version, {}, self.seconds, batch.num_tokens)

    async def save(self, directory: Path):
        await asyncio.sleep(0.25)
        await super().save(directory)
        (directory / "lineage").write_text(repr(self.lineage))

    async def written(self):
        await asyncio.sleep(3.0)

    async def load(self, directory: Path):
        self.lineage = eval((directory / "lineage").read_text())
        return await super().load(directory)


@dataclass
class Played:
    """What must be the same whatever happens to the run."""

    lineage: list
    counters: dict
    prompt_counters: dict
    stream: dict
    told: dict = field(default_factory=dict)


def play(setup: Setup, directory: Path, timing: int, interrupted: bool = False) -> tuple[Played, list[str]]:
    """Run to the end; return what it came to, and sentences about what is wrong in itself."""
    r = random.Random(timing)
    wrong = []
    told: dict = {}
    for life in range(8):
        rollout = Rollout(setup, timing * 100 + life)
        flags = {} if setup.at_once is None else {"vllm_generate_batch_size": setup.at_once}
        learner = Learner(lambda: p)  # noqa: B023  called within this turn
        p = pipeline(
            directory, prompts=Prompts(setup), rollout=rollout, learner=learner, mode="sync", B=setup.B,
            max_steps=setup.max_steps, save_steps=setup.save_steps, endless=True, sampling=flags,
        )  # fmt: skip
        # Prompts that fail for good in a row are part of the game.
        p.health = Mock(p.health, unproductive=False)
        balanced = p.scheduler.method._balanced
        p.scheduler.method._balanced = dict.fromkeys([*balanced, "a", "b"], setup.length_balance)
        kind = r.choice(["crash", "crash", "stop"]) if interrupted and life < 6 else None
        ended = run(_life(p, life > 0, kind, r.uniform(0.0, 25.0)))
        told |= rollout.told
        if learner.begun_after_a_stop:
            wrong.append("a step was begun after the stop")
        p.scheduler.ledger.close()
        if ended:
            break
    method = p.scheduler.method
    method.batch_trained()  # what ended since the last batch
    groups = audit(p.scheduler.ledger.path)
    wrong += groups.errors
    counted = len(groups.trained) + sum(n for end, n in groups.ended.items() if end.startswith("filtered"))
    if method.counters.run.get("groups", 0) != counted:
        wrong.append(f"{counted} groups were trained or filtered, {method.counters.run} counted")
    stream = p.scheduler.queue.stream.state()
    return Played(learner.lineage, method.counters.run, method.counters.prompts, stream, told), wrong


async def _life(p, resume: bool, kind: str | None, at: float) -> bool:
    """Return True if the run came to its end."""
    loop = asyncio.get_running_loop()
    main = asyncio.create_task(p.run(resume=resume))
    if kind == "crash":
        loop.call_later(at, main.cancel)
    elif kind == "stop":
        loop.call_later(at, p.stop.request, "the test")
    try:
        await main
    except (asyncio.CancelledError, Stopped):
        return False
    return True


def check(setup: Setup, tmp_path: Path) -> None:
    played = []
    for name, timing, interrupted in (("one", 1, False), ("two", 2, False), ("cut", 3, True)):
        came_to, wrong = play(setup, tmp_path / f"{name}_{setup.seed}", timing, interrupted)
        assert not wrong, (setup, name, wrong)
        played.append(came_to)
    one, *others = played
    for other in others:
        assert other == one, (setup, one, other)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Hundreds of runs: no disk is waited for."""
    monkeypatch.setattr(checkpoint, "flush", lambda path: None)
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.mark.slow
@pytest.mark.parametrize("first", ordinary_first(range(FIRST, FIRST + FAST, PER_TEST), 1))
def test_a_run_without_staleness_does_not_depend_on_the_order_of_arrival_nor_on_interruptions(tmp_path, first):
    for seed in range(first, first + PER_TEST):
        check(setup_of(seed), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("first", range(FIRST + FAST, FIRST + FAST + LONG, 250))
def test_a_run_without_staleness_does_not_depend_on_the_order_of_arrival_thousands_of_times(tmp_path, first):
    for seed in range(first, first + 250):
        check(setup_of(seed), tmp_path)


def test_the_runs_of_this_test_are_not_trivial(tmp_path):
    """Groups are dropped, end out of order and read counters that moved."""
    assert np.ptp([len(play(setup_of(seed), tmp_path / str(seed), 1)[0].told) for seed in range(3)]) > 0
    setups = [setup_of(seed) for seed in range(FAST)]
    assert sum(s.shares and s.drop > 0 for s in setups) >= 6 and sum(s.length_balance for s in setups) >= 6
    assert sum(s.curriculum for s in setups) >= 6 and sum(s.fault > 0 for s in setups) >= 4
