"""Several updates per rollout batch, on a virtual clock: what S allows in updates, and that it always holds."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_tir.config import Config
from openrlhf_tir.config.settings import load
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.pipeline.scheduler import InFlightGroup, StalenessRule
from openrlhf_tir.simulation.run import configure, simulate
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.types import GroupKey, StepReport

from .fakes import FakeLearner, FakePrompts, FakeRollout, MemoryMetrics, pipeline
from .test_simulation import constant

CUT = {"train": {"batch_size": 2}}
"""Batches of B = 2 groups of 2 samples: two mini-batches."""


def config(pipeline: dict, size: int | None = 512, epochs: int = 1, steps: int = 400) -> Config:
    """Batches of 2,048 samples."""
    return Config(pipeline=pipeline, train={"batch_size": size, "max_epochs": epochs, "max_steps": steps})


@pytest.mark.parametrize(
    ("given", "epochs", "updates", "ahead", "S"),
    [
        ({"mode": "sync"}, 1, 4, 0, 3),  # on-policy at the batch's first update, three updates old at its last
        ({"mode": "one_step"}, 1, 4, 1, 7),
        ({"mode": "pipeline"}, 1, 4, 4, 19),
        ({"mode": "pipeline", "max_staleness": 7}, 1, 4, 1, 7),
        ({"mode": "pipeline", "max_staleness": 10}, 1, 4, 1, 10),  # 11 is the next that lets a batch more begin
        ({"mode": "pipeline", "max_staleness": 11}, 1, 4, 2, 11),
        ({"mode": "pipeline", "max_staleness": 23}, 2, 8, 2, 23),
    ],
)
def test_S_counts_updates_and_says_how_many_batches_may_roll_ahead(given, epochs, updates, ahead, S):
    cfg = config(given, epochs=epochs)
    assert (cfg.updates_per_batch, cfg.batches_ahead, cfg.max_staleness) == (updates, ahead, S)


@pytest.mark.parametrize(
    ("flags", "setting", "numbers"),
    [
        ({"pipeline.max_staleness": 4}, "pipeline.max_staleness", {4, 7}),
        ({"pipeline.max_staleness": 7, "train.max_epochs": 2}, "pipeline.max_staleness", {2048, 512, 4, 2, 8, 15}),
        ({"pipeline.max_staleness": 7, "pipeline.push_every": 3}, "pipeline.push_every", {11, 2}),
        ({"pipeline.max_staleness": 15, "pipeline.depth": 1000}, "pipeline.depth", {4, 3, 128, 512}),
        ({"train.batch_size": 500}, "train.batch_size", {500, 2048}),
        ({"train.batch_size": 4}, "train.batch_size", {4, 8}),  # less than one sample for each of 8 ranks
        ({"train.max_steps": 402}, "train.max_steps", {4, 400, 404}),
    ],
)
def test_what_staleness_does_not_allow_is_refused_with_the_number_that_it_needs(flags, setting, numbers):
    with pytest.raises(ConfigError) as e:
        load(None, {"train.batch_size": 512, "train.max_steps": 400, **flags})
    (problem,) = e.value.problems
    assert problem.setting == setting and numbers <= {int(number) for number in re.findall(r"\d+", problem.message)}


def test_the_gate_counts_in_batches_of_updates():
    """k = 4, B = 2: at version 8, four groups due by 12 are two batches, that of 8 and that of 12; no fifth fits."""
    rule = StalenessRule(batch_groups=2, updates_per_batch=4)
    assert rule.gate_is_open(8, [12] * 4, [])
    assert not rule.gate_is_open(8, [12] * 4, [12])
    # due before 12: a later batch would begin too late for what still rolls
    assert not rule.gate_is_open(8, [12] * 3, [11])
    due_at_12 = [InFlightGroup(GroupKey(0, number), number, version=12) for number in range(5)]
    assert rule.surplus(8, due_at_12) == (4,)
    # After an update that was left out the learner is at 7, and begins at 11 next, which is in time for 12, and at 15,
    # which is not.
    assert rule.gate_is_open(7, [12] * 4, [])
    assert not rule.gate_is_open(7, [12] * 4, [12])


def test_each_batch_is_trained_in_its_updates_and_the_version_counts_them(tmp_path):
    metrics = MemoryMetrics()
    p = pipeline(tmp_path, mode="sync", S=None, max_steps=6, save_steps=3, metrics=metrics, **CUT)
    run(p.run())
    assert sorted(metrics.rows) == [2, 4, 6] and p.version == 6
    assert p.publisher.versions == [0, 2, 4, 6]
    assert {version - oldest for version, _, oldest in p.learner.trained} == {0, 1}
    # the batches that reached 3 and 6
    assert [path.name for path in sorted((tmp_path / "ckpt").glob("step_*"))] == ["step_000004", "step_000006"]


def test_a_run_of_several_updates_resumes_where_its_batch_ended(tmp_path):
    first = pipeline(tmp_path, S=5, depth=None, max_steps=12, save_steps=4, learner=FakeLearner(crash_at=8), **CUT)
    with pytest.raises(ExceptionGroup):
        run(first.run())
    second = pipeline(tmp_path, S=5, depth=None, max_steps=12, save_steps=4, **CUT)
    run(second.run(resume=True))
    assert second.version == 12 and min(version for version, _, _ in second.learner.trained) in (4, 8)
    second.scheduler.check()


class Faulty(FakeLearner):
    """Of the updates of some batches one or all are not finite: they are no versions."""

    async def step(self, batch):
        report = await super().step(batch)
        lost = self.version // 3 % (len(batch.updates) + 1)
        self.version -= lost
        norm = 1.0 if lost < len(batch.updates) else float("nan")
        return StepReport(self.version, {"grad_norm": norm, "lr": 1.0}, report.seconds, report.trained_tokens)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    mode=st.sampled_from(["pipeline", "pipeline_drain", "one_step", "sync"]),
    parts=st.sampled_from([1, 2, 4]),
    epochs=st.integers(1, 3),
    slack=st.integers(0, 7),
    push=st.integers(1, 3),
    depth=st.sampled_from(["auto", None]),
    faulty=st.booleans(),
)
def test_at_every_update_no_token_is_older_than_S_and_nothing_deadlocks(
    tmp_path_factory, seed, mode, parts, epochs, slack, push, depth, faulty
):
    k = parts * epochs
    free = mode.startswith("pipeline")
    S = 2 * k - 1 + slack if free else None
    rollout = FakeRollout(
        seed, latency=lambda r: r.choice([0.1, 1.0, 9.0]), fate=lambda r: r.choice(["", "", "accuracy_high"])
    )
    flags = {"push_every": min(push, (S + 1) // k)} if S is not None else {}
    p = pipeline(
        tmp_path_factory.mktemp("run"),
        mode=mode,
        S=S,
        depth=depth if free else None,
        B=2,
        rollout=rollout,
        learner=Faulty() if faulty else FakeLearner(),
        prompts=FakePrompts(40),
        max_steps=1000 * k,
        train={"batch_size": 4 // parts, "max_epochs": epochs},
        endless=True,
        **flags,
    )
    run(p.run())
    bound = {"sync": k - 1, "one_step": 2 * k - 1}.get(mode, S)
    assert p.cfg.max_staleness == bound
    assert max((version - oldest for version, _, oldest in p.learner.trained), default=0) <= bound
    p.scheduler.check()


def test_the_simulation_tells_the_age_of_each_update_s_tokens():
    """Four updates a batch: in sync mode tokens are 0 to 3 updates old, and a quarter of them each."""
    w = constant(steps=16)
    cfg = configure(w, mode="sync")
    samples = w.prompts * w.samples_per_prompt
    cfg = cfg.model_validate({**cfg.model_dump(), "train": {**cfg.train.model_dump(), "batch_size": samples // 4}})
    ages = simulate(w, cfg, learner_s=1.0, warm_up=0).staleness
    assert sorted(ages) == [0, 1, 2, 3] and len(set(ages.values())) == 1
