"""Engines that are lost outside the loop: before its first push, after its last, in a cold start. Fake actors that hold
weights, virtual time."""

from __future__ import annotations

import asyncio
import io
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from miniatures.toy.cold_start import Schedule, Stage
from openrlhf_tir.config import Config
from openrlhf_tir.errors import WeightsUnverified
from openrlhf_tir.pipeline.stop import StopRequest
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.types import Completion

from .attempts import run_attempts
from .colocation.apart import Apart
from .test_pool import config

pytestmark = pytest.mark.slow  # importing ray
INITIAL = 0.0
"""What an engine that loads the model from disk holds: weights are one number here, the log-prob of any sample."""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    from .fake_actors import FakeActor, FakeCluster

    class Weighing(FakeActor):
        def __init__(self, index: int) -> None:
            super().__init__(index)
            self.weights = INITIAL

        async def do_sample_canary(self, prompt_ids, max_tokens, seed):
            return [self.completion(max_tokens) for _ in prompt_ids]

        async def do_update_weights(self, path, version, digest, canary, link):
            assert path.read_text() == digest
            self.weights, self.version = float(digest), version
            return [self.completion(canary.max_tokens) for _ in canary.prompt_ids]

        def completion(self, n: int) -> Completion:
            return Completion(
                np.arange(n, dtype=np.int32),
                np.full(n, self.weights, np.float32),
                np.full(n, self.version, np.int32),
                "",
                "length",
            )

    for module in ("miniatures.toy.base", "openrlhf_tir.cluster.jobs.train"):
        monkeypatch.setattr(f"{module}.only_here", lambda: True)
        monkeypatch.setattr(f"{module}.has_gpus", lambda: False)
    c = FakeCluster(config(tmp_path, engines=2), monkeypatch)
    c.actor_class = Weighing
    return c


class WeighingLearner:
    """Fine-tuning takes a second a step and changes the weights, not the version."""

    def __init__(self) -> None:
        self.version, self.weights, self.deaths = 0, INITIAL, 0

    async def publish(self, path):
        path.write_text(str(self.weights))
        return str(self.weights)

    async def score(self, sequences):
        if self.deaths:
            from openrlhf_tir.errors import LearnerDied

            self.deaths -= 1
            raise LearnerDied("rank 0 is gone")
        return [np.full(len(s) - 1, self.weights) for s in sequences]

    async def sft_step(self, rows, lr):
        before = self.weights
        self.weights = float("nan")  # in the middle of a step there is nothing to push
        await asyncio.sleep(1)
        self.weights = before + 1.0
        return {"loss": 0.0}

    async def export(self, directory):
        directory.mkdir(parents=True, exist_ok=True)


class Session(Apart):
    replaced = 0

    async def replace_learner(self, cfg):
        self.replaced += 1


def session_of(c) -> Session:
    return Session(
        pool=c.pool,
        learner=WeighingLearner(),
        console=Console(file=io.StringIO()),
        stop=StopRequest(20.0),
        pss=SimpleNamespace(peak_gib=0.0),
    )


async def lose_one_and_wait(c) -> None:
    """Until another stands in its place."""
    c.pool.fleet.mark_lost(c.pool.members[0], "killed by a test")
    await asyncio.sleep(60)


@pytest.mark.parametrize(("evaluated_last", "again"), [(3, "of the loop's evaluation"), (2, None)])
def test_an_engine_that_is_lost_in_the_final_evaluation_is_replaced_by_one_with_the_last_weights(
    evaluated_last, again, cluster, tmp_path, monkeypatch
):
    """Sampled figures of the final weights that the loop has are not made again."""
    from openrlhf_tir.cluster.jobs import train

    cfg = config(tmp_path, engines=2, vllm={"canary_tolerance": 0.1})
    found, known = [], {}

    async def attempt(parts, publisher, resume):
        learner = parts.services.learner
        learner.version, learner.weights = 3, 7.0
        await publisher.publish(3)
        parts.latest[evaluated_last] = "of the loop's evaluation"
        return 3

    async def evaluated(session, cfg, tasks, what, sampled=None):
        known[what] = sampled
        if what == "the trained model":
            await lose_one_and_wait(cluster)
            found.extend((m.name, m.actor.weights) for m in cluster.pool.members)

    async def go():
        await cluster.pool.fleet.start()
        session = session_of(cluster)
        await train.run_training(
            session, cfg, SimpleNamespace(canary=[[1]], held_out=["a problem"], prompts=SimpleNamespace(tasks=[]))
        )
        assert cluster.pool.prover is None and not list(tmp_path.glob("**/*.safetensors"))
        await cluster.pool.stop()

    for name, fake in {
        "_train_until_ranks_die": attempt,
        "try_to_evaluate": evaluated,
        "exported": SimpleNamespace(complete=lambda *a: None, say_where=lambda *a: None),
        "_print_audit": lambda *a: None,
    }.items():
        monkeypatch.setattr(train, name, fake)
    monkeypatch.setattr("openrlhf_tir.observability.report.build.build_report", lambda d: d)
    monkeypatch.setattr(train, "push_directory", lambda run_dir, *a, **k: run_dir / "push")
    run(go())
    assert known == {"the base model": None, "the trained model": again}
    assert sorted(found) == [("rollout-0", 7.0), ("rollout-1", 7.0)]


def calibrating(cluster, tmp_path, monkeypatch, prepare) -> Session:
    """A start with bf16, whose tolerance is calibrated, up to the first step."""
    from openrlhf_tir.cluster.jobs import train

    cfg = config(tmp_path, engines=2)
    assert cfg.fixed_canary_tolerance is None
    session = session_of(cluster)

    async def attempt(parts, publisher, resume):
        assert publisher.reference.levels
        return 1

    async def go():
        await cluster.pool.fleet.start()
        prepare(session)
        try:
            return await run_attempts(train, session, cfg)
        finally:
            await cluster.pool.stop()

    monkeypatch.setattr(train, "_train_until_ranks_die", attempt)
    assert run(go()) == 1
    return session


def test_a_rank_that_dies_while_the_canary_is_calibrated_is_answered_by_a_restart(cluster, tmp_path, monkeypatch):
    def prepare(session):
        session.learner.deaths = 2

    assert calibrating(cluster, tmp_path, monkeypatch, prepare).replaced == 2


def test_engines_that_all_die_under_the_first_canary_are_replaced_and_asked(cluster, tmp_path, monkeypatch):
    from .test_pool import ray_error

    def prepare(session):
        for actor in cluster.actors:
            actor.raises["sample_canary"] = ray_error("died")

    calibrating(cluster, tmp_path, monkeypatch, prepare)
    assert len(cluster.actors) == 4


def test_engines_that_die_under_every_canary_end_the_run_by_name(cluster, tmp_path, monkeypatch):
    from .test_pool import ray_error

    cluster.prepare = lambda actor: actor.raises.update(sample_canary=ray_error("died"))
    with pytest.raises(WeightsUnverified, match=r"^0 \w+ [12] "):
        calibrating(cluster, tmp_path, monkeypatch, lambda session: None)


@pytest.mark.parametrize("when", ["fine-tuning", "evaluation"])
@pytest.mark.parametrize("round_", [1, 2, 3])
def test_an_engine_that_is_replaced_in_a_cold_start_is_measured_with_the_weights_of_the_others(
    cluster, tmp_path, monkeypatch, when, round_
):
    """Three rounds: the gates are missed twice. The figures of a round are of one policy, whichever round loses an
    engine, and wherever in it."""
    from miniatures.toy import base as toy

    cfg = Config.model_validate(
        config(tmp_path, engines=2).model_dump() | {"vllm": {"num_engines": 2, "canary_tolerance": 1e-4}}
    )
    measured, learned = [], []

    async def measure(session, cfg, tasks, what):
        if when == "evaluation" and len(measured) + 1 == round_:
            await lose_one_and_wait(cluster)
        measured.append(sorted(m.actor.weights for m in cluster.pool.members))
        learned.append(session.learner.weights)
        ratio = 0.3 if len(measured) == 3 else 0.9
        figures = toy.EvalResult(accuracy=0.35, code_ratio=ratio, format_ok=1.0, code_correct=1.0, samples=1, failed=0)
        return figures, figures

    async def go():
        await cluster.pool.fleet.start()
        session = session_of(cluster)
        base = toy.ToyBase(cfg)
        base.lesson = replace(base.lesson, schedule=Schedule(stages=(Stage(20, 0.85),), batch_size=1))
        making = asyncio.create_task(toy.make_base(session, base, SimpleNamespace(canary=[[1]], held_out=[])))
        if when == "fine-tuning":
            while len(measured) + 1 < round_:
                await asyncio.sleep(0.1)
            await asyncio.sleep(2.5)  # in the middle of the third step
            cluster.pool.fleet.mark_lost(cluster.pool.members[0], "killed by a test")
        await making
        assert cluster.pool.prover is None and cluster.pool.cfg.actor.model_name_or_path == str(tmp_path / "base")
        await cluster.pool.stop()

    monkeypatch.setattr(toy, "evaluate_held_out", measure)
    monkeypatch.setattr(toy, "bar", lambda *a: nullcontext(lambda **k: None))
    monkeypatch.setattr(toy, "push_directory", lambda run_dir, *a, **k: run_dir / "push")
    run(go())
    assert measured == [[w, w] for w in learned] and len(set(learned)) == 3
    assert len(cluster.actors) == 3, "the engine that was started in its place was good at once"
