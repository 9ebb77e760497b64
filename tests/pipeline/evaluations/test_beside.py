"""An evaluation beside training, on the virtual clock: what goes on meanwhile, what waits, and that staleness holds."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_tir.errors import ConfigError, EvaluationFailed, StallError, Stopped
from openrlhf_tir.pipeline.diagnosis import OUTSIDE
from openrlhf_tir.simulation.virtual_loop import run

from ..fakes import FakeLearner, FakePrompts, FakeRollout, MemoryMetrics, ages, pipeline, what_stops

LONG_S = 500.0


class Clocked(FakeLearner):
    """Remembers when the step on each version began."""

    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.began: dict[int, float] = {}

    async def step(self, batch):
        self.began[self.version] = asyncio.get_running_loop().time()
        return await super().step(batch)


class Samples:
    """A measurement of so many seconds, looking at the engines' version ten times: `seen` is a list for each.

    A list of `scores` is its figures; without one, the version."""

    def __init__(self, seconds: float, *scores: float) -> None:
        self.seconds, self.scores, self.seen, self.ended = seconds, list(scores), [], []

    def of(self, p):
        self.p = p
        return p

    async def __call__(self) -> dict[str, float]:
        seen: list[int] = []
        self.seen.append(seen)
        for _ in range(10):
            seen.append(self.p.rollout.version)
            await asyncio.sleep(self.seconds / 10)
        seen.append(self.p.rollout.version)
        self.ended.append(asyncio.get_running_loop().time())
        return {"eval/accuracy": self.scores.pop(0) if self.scores else float(seen[0])}


def evaluated(tmp_path, seconds: float = LONG_S, scores: tuple[float, ...] = (), **flags):
    """A pipeline and its measurement."""
    samples = Samples(seconds, *scores)
    flags.setdefault("learner", Clocked())
    return samples.of(pipeline(tmp_path, evaluate=samples, **flags)), samples


def test_the_learner_goes_on_during_a_long_evaluation_as_far_as_staleness_admits(tmp_path):
    """S = 4: what was sampled by version 8 is trained by five steps, those on 8, 9, 10, 11 and 12, all within a minute
    of its push. The step on 13 needs weights that the engines get when the evaluation is over."""
    p, samples = evaluated(tmp_path, S=4, eval_steps=8, max_steps=18)
    run(p.run())
    began, first, _ = p.learner.began, *samples.ended
    assert [began[v] < first - LONG_S + 60 for v in range(8, 13)] == [True] * 5
    assert first < began[13] < first + 60
    assert p.publisher.versions == [0, 1, 2, 3, 4, 5, 6, 7, 8, 13, 14, 15, 16, 18]
    assert samples.seen == [[8] * 11, [16] * 11]
    assert max(ages(p.learner)) == 4


def test_without_a_batch_ahead_or_as_eval_wait_says_the_learner_waits(tmp_path):
    for name, flags in {"a": {"mode": "sync", "S": None}, "b": {"S": 4, "eval": {"wait": True}}}.items():
        p, samples = evaluated(tmp_path / name, eval_steps=2, max_steps=5, **flags)
        run(p.run())
        assert p.publisher.versions == [0, 1, 2, 3, 4, 5] and samples.seen == [[2] * 11, [4] * 11]
        assert p.learner.began[2] >= samples.ended[0] and p.learner.began[4] >= samples.ended[1]


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    mode=st.sampled_from(["sync", "one_step", "pipeline", "pipeline", "pipeline_drain"]),
    S=st.integers(1, 4),
    k=st.integers(1, 5),
    B=st.integers(1, 3),
    depth=st.sampled_from([None, "auto"]),
    every=st.integers(1, 4),
    seconds=st.sampled_from([0.0, 0.5, 7.0, 300.0]),
    save=st.sampled_from([-1, 1, 3]),
    key=st.sampled_from(["none", "eval/accuracy"]),
)
def test_staleness_is_bounded_each_evaluation_is_of_one_version_and_nothing_deadlocks(
    tmp_path_factory, seed, mode, S, k, B, depth, every, seconds, save, key
):
    rollout = FakeRollout(
        seed, latency=lambda r: r.choice([0.1, 1.0, 9.0]), fate=lambda r: r.choice(["", "", "accuracy_high"])
    )
    S = {"sync": 0, "one_step": 1}.get(mode, S)
    rows = Rows()
    p, samples = evaluated(
        tmp_path_factory.mktemp("run"),
        seconds,
        mode=mode,
        S=S,
        push_every=min(k, S + 1),
        B=B,
        rollout=rollout,
        prompts=FakePrompts(30),
        max_steps=1000,
        eval_steps=every,
        save_steps=save,
        metrics=rows,
        ckpt={"best_metric_key": key},
        **({"depth": depth} if depth and mode.startswith("pipeline") else {}),
    )
    run(p.run())
    assert max(ages(p.learner), default=0) <= S
    due = [*range(every, p.version + 1, every)]
    assert [sorted(set(seen)) for seen in samples.seen] == [[v] for v in due]
    assert rows.evaluations() == [(v, float(v)) for v in due]
    assert p.publisher.versions[-1] == p.version


class Rows(MemoryMetrics):
    """Keeps all rows, in the order of writing, as metrics.jsonl does."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[tuple[int, dict]] = []

    def log(self, step, row):
        super().log(step, row)
        self.all.append((step, dict(row)))

    def truncate_after(self, step, evaluated=True):
        super().truncate_after(step, evaluated)
        of_step = [(s, row) for s, row in self.all if s <= step]
        self.all = [(s, row) for s, row in of_step if evaluated or s < step or not set(row) & {"eval/accuracy"}]

    def evaluations(self) -> list[tuple[int, float | None]]:
        """Version and accuracy of each record, None of one that failed; by version."""
        return sorted(
            (step, row.get("eval/accuracy")) for step, row in self.all if any(n.startswith("eval/") for n in row)
        )


def test_the_wait_for_an_evaluation_is_not_taken_for_a_slow_learner(tmp_path):
    """Step 1 s and push 0.1 s; the depth controller is told nothing of the 500 s."""
    p, _ = evaluated(tmp_path, S=2, eval_steps=2, max_steps=12)
    run(p.run())
    assert p.scheduler.timing.step_s == pytest.approx(1.1, abs=0.11)


def test_the_best_checkpoint_has_the_weights_that_were_evaluated_though_the_learner_went_on(tmp_path):
    """Versions 2, 4, 6 and 8 score .2, .9, .1 and .3: at the end of each the learner is two or three steps ahead."""
    p, samples = evaluated(tmp_path, scores=(0.2, 0.9, 0.1, 0.3), S=2, eval_steps=2, max_steps=9)
    run(p.run())
    assert json.loads((tmp_path / "ckpt/best.json").read_text()) == {"checkpoint": "step_000004", "score": 0.9}
    assert json.loads((tmp_path / "ckpt/step_000004/learner/learner.json").read_text()) == {"version": 4}
    assert sorted(d.name for d in (tmp_path / "ckpt").glob("step_*")) == ["step_000002", "step_000004", "step_000009"]
    assert not list((tmp_path / "ckpt").glob(".step_*"))
    assert p.learner.began[4] < samples.ended[1]


def test_a_later_checkpoint_waits_for_the_evaluation_and_one_of_its_version_is_written_with_it(tmp_path):
    """Evaluated at 3, saved at 3 and 6 (S = 4): 3 is on disk when its figures are there, and 6 not before."""
    rows, order = Rows(), []

    class Disk(FakeLearner):
        async def save(self, directory):
            order.append(("copied", self.version, len(rows.evaluations())))
            await super().save(directory)

        async def written(self):
            order.append(("written", self.version, len(rows.evaluations())))

    p, _ = evaluated(
        tmp_path, S=4, eval_steps=3, save_steps=3, max_steps=5, learner=Disk(), metrics=rows,
        ckpt={"best_metric_key": "none"},
    )  # fmt: skip
    run(p.run())
    assert order[0] == ("copied", 3, 0), "before the learner goes on"
    assert order[1] == ("written", 5, 1), "with the figures, at which the learner is at the last version"
    p, _ = evaluated(
        tmp_path / "b", S=4, eval_steps=3, save_steps=4, max_steps=5, learner=Disk(), metrics=rows,
        ckpt={"best_metric_key": "none"},
    )  # fmt: skip
    order.clear()
    rows.all.clear()
    run(p.run())
    assert order[0] == ("copied", 4, 1)


def test_an_evaluation_that_fails_or_hangs_beside_training_ends_no_run(tmp_path, monkeypatch):
    monkeypatch.setattr("openrlhf_tir.pipeline.evaluation.DEADLINE_S", 60.0)
    outcomes = iter([EvaluationFailed("engine", 5, 40)] * 2)

    async def failing():
        await asyncio.sleep(10)
        if outcome := next(outcomes, None):
            raise outcome
        await asyncio.get_running_loop().create_future()

    rows = Rows()
    p = pipeline(tmp_path, S=3, eval_steps=4, max_steps=9, evaluate=failing, metrics=rows, stall=1000)
    run(p.run())
    assert p.version == 9 and rows.evaluations() == [(4, None), (8, None)]
    assert rows.all[[s for s, row in rows.all if "eval/failed" in row].index(4)][1] is not None
    assert max(ages(p.learner)) <= 3


def test_the_end_of_a_run_waits_for_the_last_evaluation_without_checkpoints_too(tmp_path):
    """And can be stopped meanwhile."""
    flags = {"S": 2, "eval_steps": 2, "max_steps": 4, "ckpt": {"max_num": 0}}
    rows = Rows()
    p, samples = evaluated(tmp_path / "a", metrics=rows, **flags)
    run(p.run())
    assert rows.evaluations() == [(2, 2.0), (4, 4.0)]
    p, _ = evaluated(tmp_path / "b", **flags)

    async def stopped() -> float:
        asyncio.get_running_loop().call_later(samples.ended[1] - LONG_S / 2, p.stop.request, "SIGTERM")
        with pytest.raises(Stopped):
            await p.run()
        return asyncio.get_running_loop().time()

    assert run(stopped()) < samples.ended[1] - LONG_S / 3


def test_a_mistake_in_the_key_ends_the_run_from_beside(tmp_path):
    p, _ = evaluated(tmp_path, S=3, eval_steps=2, max_steps=9, ckpt={"best_metric_key": "eval/acuracy"})
    assert "ckpt.best_metric_key = 'eval/acuracy'" in what_stops(p, ConfigError)


def test_the_watchdog_sees_an_evaluation_that_makes_progress_and_names_one_that_does_not(tmp_path):
    p = pipeline(tmp_path / "a", S=1, eval_steps=2, max_steps=4, evaluate=lambda: slow(p, ticks=True), stall=100)
    run(p.run())
    assert p.version == 4
    p = pipeline(tmp_path / "b", S=1, eval_steps=2, max_steps=8, evaluate=lambda: slow(p, ticks=False), stall=100)
    said = what_stops(p, StallError)
    assert re.search(rf"{re.escape(OUTSIDE['wait for evaluation'])} \w+ 100 s, [^;]* 4;", said)
    assert p.saver.last_snapshot[0] == 4 and p.publisher.versions[-1] == 2, "what waited for it does not go on"


async def slow(p, ticks: bool) -> dict[str, float]:
    """500 s; with `ticks` each sample tells the watchdog, as train.py does."""
    for _ in range(10):
        await asyncio.sleep(LONG_S / 10)
        if ticks:
            p.watchdog.beat()
    return {"eval/accuracy": 0.5}
