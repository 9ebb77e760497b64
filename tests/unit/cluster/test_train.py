"""What holds a training run together: learner ranks that are replaced, and what is done after it. No Ray, no engine."""

from __future__ import annotations

import asyncio
import io
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from openrlhf_tir.config import Config
from openrlhf_tir.errors import InfraError, Stopped
from openrlhf_tir.pipeline.stop import StopRequest
from openrlhf_tir.simulation.virtual_loop import run

from ...pipeline.checkpoints.test_checkpoint import evaluations
from ...pipeline.fakes import FakeLearner, FakePrompts, pipeline
from .attempts import run_attempts
from .colocation.apart import Apart

pytestmark = pytest.mark.slow  # importing ray


@pytest.fixture
def train(monkeypatch):
    from openrlhf_tir.cluster.jobs import train

    monkeypatch.setattr(train, "only_here", lambda: True)
    monkeypatch.setattr(train, "has_gpus", lambda: False)  # Ray is not started here
    return train


def session_of(services: type[Apart], directory: Path) -> tuple[Apart, Config]:
    """Return the services of a session without engines, and its configuration."""
    from openrlhf_tir.cluster.engine_pool import EnginePool

    cfg = Config.model_validate({"run_dir": directory, "vllm": {"canary_tolerance": 0.1}})
    pool = EnginePool(cfg, {})
    console = Console(file=io.StringIO())
    return services(pool=pool, learner=FakeLearner(), console=console, stop=StopRequest(20.0)), cfg


def test_an_engine_that_starts_while_the_learner_is_replaced_waits_for_no_learner(train, tmp_path, monkeypatch):
    """The publisher of the attempt before would ask ranks that are gone, and push a file that it has removed."""
    joins = []
    counts = []

    class Services(Apart):
        async def replace_learner(self, cfg):
            joins.append(self.pool.prover)
            assert not self.pool._may_join.is_set(), "a new engine waits for the next publisher"

    async def attempt(parts, publisher, resume):
        joins.append(parts.services.pool.prover)
        counts.append(parts.method_errors)
        assert not parts.latest, "weights of the attempt before"
        parts.latest[7] = "an evaluation"
        if len(joins) == 1:
            raise BaseExceptionGroup("", [train.LearnerDied("rank 0 is gone")])
        return 7

    monkeypatch.setattr(train, "_train_until_ranks_die", attempt)
    assert run(run_attempts(train, *session_of(Services, tmp_path))) == 7
    first, between, second = joins
    assert between is None and None not in (first, second) and first.__self__ is not second.__self__
    assert counts[0] is counts[1], "user code that was good before is not called new"


def test_lost_learners_are_counted_since_the_newest_checkpoint(train, tmp_path, monkeypatch):
    class Services(Apart):
        async def replace_learner(self, cfg):
            pass

    newest = iter(["step_8", "step_16", "step_16"])

    async def attempt(parts, publisher, resume):
        raise train.LearnerDied("rank 0 is gone")

    monkeypatch.setattr(train, "MAX_RESTARTS", 1)
    monkeypatch.setattr(train, "_train_until_ranks_die", attempt)
    with pytest.raises(train.LearnerDied):
        run(run_attempts(train, *session_of(Services, tmp_path), newest=lambda: next(newest)))
    assert next(newest, None) is None, "the second loss came after a new checkpoint, the third did not"


@pytest.mark.parametrize("restarts_left", [0, 1])
def test_a_learner_that_dies_while_the_run_is_stopped_ends_it_as_stopped(train, tmp_path, monkeypatch, restarts_left):
    """A signal to the whole job ends the ranks too, however many restarts were used before."""
    services, cfg = session_of(Apart, tmp_path)

    async def attempt(*args):
        services.stop.reason = "SIGTERM"
        raise train.LearnerDied("rank 0 is gone")

    monkeypatch.setattr(train, "MAX_RESTARTS", restarts_left)
    monkeypatch.setattr(train, "_train_until_ranks_die", attempt)
    with pytest.raises(Stopped):
        run(run_attempts(train, services, cfg))


def test_a_best_model_that_the_disk_refuses_ends_no_run_that_is_done(train, tmp_path):
    class Full(FakeLearner):
        async def export(self, directory):
            raise OSError(28, "No space left on device")

    p = pipeline(tmp_path, max_steps=1, eval_steps=1, evaluate=evaluations(0.5), prompts=FakePrompts(8), learner=Full())
    run(p.run())
    services = Apart(learner=p.learner, console=Console(file=io.StringIO(), width=200))
    asyncio.run(train._export_best(services, p.cfg, p.saver.checkpoints, tmp_path / "model_best"))
    assert re.search(r"best: .*\[Errno 28\] No space left on device", services.console.file.getvalue())


@pytest.mark.parametrize("kind", ["a full disk", "a dead rank"])
@pytest.mark.parametrize("saved", [True, False])
def test_an_export_that_fails_after_a_clean_audit_says_what_is_left_of_the_training(
    train, tmp_path, monkeypatch, kind, saved
):
    class Failing(FakeLearner):
        async def export(self, directory):
            raise (
                OSError(28, "No space left on device")
                if kind == "a full disk"
                else train.LearnerDied("rank 1 is gone.")
            )

    async def trained(parts, resume, pushing):
        if saved:
            await pipeline(tmp_path, max_steps=2, prompts=FakePrompts(8), learner=parts.services.learner).run()
        return 2

    monkeypatch.setattr(train, "_pipeline", trained)
    monkeypatch.setattr(train, "followed", lambda *a: nullcontext())
    cfg = Config.model_validate({"run_dir": tmp_path, "ckpt": {"path": "ckpt"}})
    from openrlhf_tir.cluster.engine_pool import EnginePool

    services = Apart(learner=Failing(), console=Console(file=io.StringIO(), width=200), pool=EnginePool(cfg, {}))
    with pytest.raises(InfraError) as e:
        asyncio.run(
            train.run_training(
                services, cfg, SimpleNamespace(prompts=SimpleNamespace(tasks=[]), held_out=[], canary=[[1]])
            )
        )
    said = str(e.value)
    assert f" {tmp_path / cfg.ckpt.output_dir}: " in said
    assert (r"[Errno 28] No space left on device; " if kind == "a full disk" else ": rank 1 is gone. ") in said
    assert bool(re.search(r"--resume .*step_000002", said)) == saved
    assert re.search(r"\btrained [1-9]\d*; \w+ 0, \w+ 0\n", services.console.file.getvalue()) or not saved


@pytest.mark.parametrize("updates", [0, 2])
def test_a_run_that_made_no_update_says_that_its_model_is_untrained(train, tmp_path, monkeypatch, updates):
    class Exporting(FakeLearner):
        async def export(self, directory):
            raise OSError(28, "what follows is not looked at here")

    async def ended(parts, resume, pushing):
        return updates

    monkeypatch.setattr(train, "_pipeline", ended)
    monkeypatch.setattr(train, "followed", lambda *a: nullcontext())
    cfg = Config.model_validate({"run_dir": tmp_path, "ckpt": {"path": "ckpt"}})
    from openrlhf_tir.cluster.engine_pool import EnginePool

    services = Apart(learner=Exporting(), console=Console(file=io.StringIO(), width=200), pool=EnginePool(cfg, {}))
    inputs = SimpleNamespace(prompts=SimpleNamespace(tasks=[]), held_out=[], canary=[[1]])
    with pytest.raises(InfraError):
        asyncio.run(train.run_training(services, cfg, inputs))
    warned = f" {tmp_path} --dropped`" in services.console.file.getvalue()
    assert warned is (updates == 0)


def test_when_the_learner_does_not_start_the_engines_do_not_either(train):
    """Neither those that are up nor those that are on their way."""
    from openrlhf_tir.cluster.services import _all_or_none

    events = []

    class Up:
        async def stop(self):
            events.append("stopped")

    async def up():
        return Up()

    async def on_its_way():
        try:
            await asyncio.sleep(1e6)
        finally:
            events.append("given up")

    async def fails():
        await asyncio.sleep(1)
        raise RuntimeError("no such model")

    with pytest.raises(RuntimeError, match="no such model"):
        run(_all_or_none(up(), on_its_way(), fails()))
    assert sorted(events) == ["given up", "stopped"]
