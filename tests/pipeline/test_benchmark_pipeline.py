"""benchmarks.pipeline: its emulated engine on a virtual clock, and its figures by hand."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from benchmarks.pipeline import __main__ as program
from benchmarks.pipeline.__main__ import SEED_FILE, advised, bound_s, fast_learner, plans
from benchmarks.pipeline.config import ENV
from benchmarks.pipeline.engine import ScriptedEngine, parse
from benchmarks.pipeline.late import efficiency
from benchmarks.pipeline.parts import SYNC_ROLLOUT, CharCodec, NoReward, Plan, judge_of
from benchmarks.pipeline.predict import AFTER_THE_END, figures, simulated, sync_rollout_seconds
from benchmarks.pipeline.record import ModeFigures, Record, Row
from benchmarks.pipeline.table import median_of, ratio_name
from benchmarks.rollout.parts import SleepingEnvs
from openrlhf_tir.errors import EngineError
from openrlhf_tir.rollout.group_runner import GroupRunner
from openrlhf_tir.rollout.protocols import Call, End
from openrlhf_tir.rollout.protocols.retool import ReTool
from openrlhf_tir.rollout.request_queue import RequestQueue
from openrlhf_tir.rollout.sequence_migration import SequenceMigration
from openrlhf_tir.simulation.parts import TASK
from openrlhf_tir.simulation.rollout import SimulatedRollout
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.simulation.workload import PROMPT_TOKENS, Acceptance, EngineSpec, Script, Workload
from openrlhf_tir.types import Group, GroupKey, Sampling, Task

ALL = Acceptance(1.0, 1.0, 12)


class OneScript(Workload):
    """Every trajectory: 10 tokens, a call of 2 s with 5 tokens of output, 20 tokens, the same call, 30 tokens."""

    def script(self, key, sample):
        return Script((10, 20, 30), (5, 5), (2.0, 2.0))


@pytest.fixture(scope="module")
def seed() -> Workload:
    return Workload.read(SEED_FILE)


@pytest.fixture
def workload(seed) -> Workload:
    """One engine that decodes 10 tokens/s whatever its load; prefill and pushes at 1000 tokens/s and 3 s."""
    engine = EngineSpec(1, 8, 10_000, ((1.0, 10.0), (8.0, 80.0)), 1000.0, 3.0)
    return OneScript(**{**vars(replace(seed, engine=engine))})


def test_a_request_is_named_as_the_group_runner_names_it():
    assert parse("0/17/1#3/2") == (GroupKey(0, 17, 1), 3, 2, 0)
    assert parse("0/17/1#3/2~4") == (GroupKey(0, 17, 1), 3, 2, 4)


def test_the_engine_writes_the_script_and_its_calls_are_calls(workload):
    async def go():
        engine = ScriptedEngine(workload, 0.5)
        protocol, answers = ReTool(max_calls=2), []
        for turn, context in enumerate((100, 115, 140)):
            c = await engine.generate([1] * context, Sampling(1 << 20), request_id=f"0/0/0#0/{turn}")
            answers.append((len(c.token_ids), protocol.advance(c)))
        return answers, asyncio.get_running_loop().time()

    answers, took = run(go())
    # 2 emulated seconds are 1 at half scale
    assert answers == [(10, Call("1.000000 5")), (20, Call("1.000000 5")), (30, End())]
    # 60 tokens at 10/s, prefill of the prompt (100) and of the observations (5 + 5) at 1000/s, all at half scale
    assert took == pytest.approx((6 + 0.11) / 2)


def test_tokens_carry_the_version_that_wrote_them_across_a_push(workload):
    """30 tokens at 10/s with the prompt cached: pushed to after 1 s, so 10 are of version 0 and 20 of version 1; 3 s of
    push, prefix again."""

    async def go():
        engine = ScriptedEngine(workload, 1.0)
        asking = asyncio.create_task(engine.generate([1] * 100, Sampling(1 << 20), request_id="0/0/0#1/2"))
        await asyncio.sleep(0.1 + 1.0)  # the prefix of another turn is not cached: 100 tokens of prefill first
        await engine.push(1)
        return Counter((await asking).versions.tolist()), asyncio.get_running_loop().time()

    versions, took = run(go())
    assert versions == {0: 10, 1: 20}
    assert took == pytest.approx(0.1 + 3 + 3 + 0.11)


def test_a_push_that_keeps_the_cache_computes_no_prefix_again(workload):
    """As above: 3 s of writing and 3 s of push, and of 100 tokens of prefill those before it only."""

    async def go():
        engine = ScriptedEngine(workload, 1.0, keeps_kv=True)
        asking = asyncio.create_task(engine.generate([1] * 100, Sampling(1 << 20), request_id="0/0/0#1/2"))
        await asyncio.sleep(0.1 + 1.0)
        await engine.push(1)
        return Counter((await asking).versions.tolist()), asyncio.get_running_loop().time()

    versions, took = run(go())
    assert versions == {0: 10, 1: 20} and took == pytest.approx(0.1 + 3 + 3)


@pytest.mark.parametrize("at", [0.5, 1.5])
def test_a_call_that_two_engines_write_is_the_call_and_takes_as_long(workload, at):
    """The second turn, 20 tokens at 10/s, is moved `at` seconds after its prefill began: both engines together write
    its 20, the second computes prompt and what was written first."""

    async def go():
        first, second = ScriptedEngine(workload, 1.0), ScriptedEngine(workload, 1.0)
        second.version = 3
        migration = SequenceMigration(first, first.text_of)
        with migration.writing("0/0/0#0"):
            asking = asyncio.create_task(
                migration.around(first).generate([1] * 115, Sampling(1 << 20, ("</code>",)), request_id="0/0/0#0/1")
            )
            await asyncio.sleep(0.115 + at)
            assert first.progress() == {"0/0/0#0/1": int(10 * at)} and await migration.move("0/0/0#0", "b", second)
            assert first.progress() == {}
            c = await asking
        return c, asyncio.get_running_loop().time()

    c, took = run(go())
    assert Counter(c.versions.tolist()) == {0: 10 * at, 3: 20 - 10 * at}
    assert ReTool(max_calls=2).advance(c) == Call("2.000000 5")
    assert took == pytest.approx(0.115 + 2 + 0.115 + at / 100)


def test_an_engine_that_fails_answers_nothing(workload):
    async def go():
        engine = ScriptedEngine(workload, 1.0)
        asking = asyncio.create_task(engine.generate([1] * 100, Sampling(1 << 20), request_id="0/0/0#0/0"))
        await asyncio.sleep(0.5)
        engine.model.fail()
        await asking

    with pytest.raises(EngineError, match="0/0/0#0/0"):
        run(go())


def test_what_is_stopped_as_it_ends_ends(workload):
    async def go():
        engine = ScriptedEngine(workload, 1.0)
        asking = asyncio.create_task(engine.generate([1] * 100, Sampling(1 << 20), request_id="0/0/0#0/0"))
        await asyncio.sleep(0.1 + 1.0)  # its timer fires in this very moment
        await engine.abort("0/0/0#0/0")
        await engine.abort("0/9/0#0/0")  # nobody's
        return await asking

    assert run(go()).finish_reason == "stop"


def test_what_has_ended_and_not_been_told_yet_cannot_be_stopped_any_more(workload):
    async def go():
        engine = ScriptedEngine(workload, 1.0)
        asking = asyncio.create_task(engine.generate([1] * 100, Sampling(1 << 20), request_id="0/0/0#0/0"))
        await asyncio.sleep(0.5)
        for request in engine._requests.values():
            request.over(True)
        await engine.abort("0/0/0#0/0")
        return await asking

    c = run(go())
    assert (c.finish_reason, len(c.token_ids)) == ("stop", 10)


def test_the_last_token_of_a_call_says_which_call_it_is(seed):
    """Of the 17th prompt's fourth sample; any other has another action."""

    async def go():
        engine = ScriptedEngine(seed, 1.0)
        calls = [
            await engine.generate([1] * 300, Sampling(1 << 20), request_id=f"0/{prompt}/0#{sample}/{turn}")
            for prompt, sample, turn in ((17, 3, 1), (17, 3, 0), (17, 4, 1), (3, 1, 1))
        ]
        return [(c.text, engine.text_of([], c.token_ids.tolist())) for c in calls]

    calls = run(go())
    assert all(said == read for said, read in calls) and len({said for said, _ in calls}) == 4


def test_a_response_that_comes_back_finds_what_it_left_in_the_cache_and_no_more(workload):
    """Turn 0 here (100 + 10 tokens), turn 1 elsewhere, turn 2 here with 140 tokens of which 5 are new: 30 at 1000/s and
    30 tokens at 10/s."""

    async def go():
        engine = ScriptedEngine(workload, 1.0, keeps_kv=True)
        await engine.generate([1] * 100, Sampling(1 << 20), request_id="0/0/0#0/0")
        before = asyncio.get_running_loop().time()
        await engine.generate([1] * 140, Sampling(1 << 20), request_id="0/0/0#0/2")
        return asyncio.get_running_loop().time() - before

    assert run(go()) == pytest.approx(0.03 + 3)


def test_an_engine_that_was_emptied_takes_a_request_while_it_is_pushed_to(workload):
    async def go():
        engine = ScriptedEngine(workload, 1.0)
        first = asyncio.create_task(engine.generate([1] * 100, Sampling(1 << 20), request_id="0/0/0#0/0"))
        await asyncio.sleep(0.5)
        await engine.abort("0/0/0#0/0")
        push = asyncio.create_task(engine.push(1))
        await asyncio.sleep(0.1)
        second = await engine.generate([1] * 100, Sampling(1 << 20), request_id="0/1/0#0/0")
        await push
        return await first, second

    first, second = run(go())
    assert (first.finish_reason, len(first.token_ids)) == ("abort", 4)
    assert second.finish_reason == "stop" and set(second.versions.tolist()) == {1}


def test_figures_count_what_comes_after_the_warm_up(workload):
    """Four steps at 0, 2, 4 and 8 s of wall-clock, one warm-up; at scale 0.5 three steps are 16 emulated seconds."""
    record = Record(4)
    for i, at in enumerate((0.0, 2.0, 4.0, 8.0)):
        facts = {
            "trained_tokens": 32.0,
            "trained_groups": 2.0,
            "step_s": 1.0,
            "replay_wait_s": 0.5,
            "drops/accuracy": 1.0,
            "requeued/surplus": 1.0,
        }
        record.rows.append(Row(at, facts, {"tokens": 20.0 * i, "busy_s": 2.0 * i}, 0.25 * i, (100.0 * i, 30.0 * i)))
    f = record.figures(
        Plan("pipeline", 2.0, 0.5, 4, 1, ALL), workload, {0: Counter({5: 99}), 1: Counter({0: 3}), 3: Counter({2: 1})}
    )
    assert f.step_s == pytest.approx(16 / 3) and f.steps_s == [4, 4, 8]
    assert f.trained_tokens_per_s == 96 / 16
    assert f.split == pytest.approx(
        {"replay_wait": 1, "gate_wait": 0, "drain": 0, "accumulate": 0, "step": 2, "push": 0, "other": 16 / 3 - 3}
    )
    assert f.learner_idle == pytest.approx(1 - 6 / 16)
    assert f.engine_idle == pytest.approx(1 - 6 / 16)
    assert f.engine_use == pytest.approx(60 / 16 / 80)
    assert f.staleness == {0: 0.75, 2: 0.25} and f.staleness_mean == 0.5 and f.staleness_max == 2
    assert (f.trained_groups, f.filtered_groups, f.discarded_groups, f.surplus_groups) == (6, 3, 3, 3)
    assert f.controller_cpu_s_per_step == 0.25 and f.machine_busy == pytest.approx(0.3)


def test_late_efficiency_is_the_saturated_time_at_each_steps_acceptance_over_the_measured(seed):
    """Acceptance 0.5 after a warm-up: a step needs 2 x 49.3 s of saturated engines; measured in 2 x 49.3 / 0.8."""
    plan = Plan("pipeline", 1.0, 1.0, 3, 1, Acceptance(0.5, 0.5, 3))
    batch = bound_s(seed, 0)
    assert efficiency(seed, plan, [2 * batch / 0.8] * 2) == pytest.approx(0.8)


def test_a_point_runs_all_modes_at_one_scale_and_the_baseline_once(seed):
    class Args:
        time_scale, steps = None, 12

    one, fast = (list(plans(seed, 200.0, r, Args)) for r in (1.0, 0.25))
    assert [p.mode for p in one] == ["sync_rollout", "sync", "one_step", "pipeline_drain", "pipeline"]
    assert {p.scale for p in one} == {20 / 200}  # a batch's rollout by itself takes 20 s by the wall clock
    # a step at the bound takes 15 s
    assert {p.scale for p in fast} == {15 / 50} and {p.learner_s for p in fast} == {50.0}
    assert [p.name for p in fast][-3:] == [
        "pipeline S=2",
        "pipeline S=8",
        "pipeline S=4 lane early KV kept",
    ]


def test_ratios_are_named_rollout_first_and_the_median_repeat_is_a_real_one(seed):
    assert [ratio_name(r) for r in (0.25, 1.0, 4.0)] == ["4:1", "1:1", "1:4"]

    class Run:
        def __init__(self, rate):
            self.trained_tokens_per_s = rate

    assert median_of([Run(3), Run(1), Run(2)]).trained_tokens_per_s == 2


def test_the_headline_of_a_fast_learner_is_of_what_was_run(seed):
    class Run:
        def __init__(self, rate):
            self.trained_tokens_per_s = rate

    results = {(0.25, "one_step"): [Run(2)], (0.25, advised(seed, 1.0, 1.0, 4).name): [Run(6.2)]}
    assert fast_learner(seed, results, "wall") == {
        "speedup_vs_one_step_fast_learner_s4": 3.1,
        "speedup_vs_one_step_fast_learner_s4_clock": "wall",
    }
    assert fast_learner(seed, {(0.25, "one_step"): [Run(2)], (0.25, "pipeline"): [Run(5)]}, "wall") == {
        "speedup_vs_one_step_fast_learner": 2.5,
        "speedup_vs_one_step_fast_learner_by_S": {4: 2.5},
    }


def test_the_baseline_generates_in_full_batches_and_calls_one_after_another(workload):
    """One prompt, two samples: 10, 20 and 30 tokens at 10/s each, prefill of the prompt once and of 2 x 5 tokens twice,
    2 x 2 calls of 2 s in line."""
    w = OneScript(**{**vars(workload), "prompts": 1, "samples_per_prompt": 2})
    rollout = (1 + PROMPT_TOKENS / 1000) + 4 + (2 + 0.01) + 4 + (3 + 0.01)
    assert sync_rollout_seconds(w, Plan(SYNC_ROLLOUT, 7.0, 1.0, 2, 1, ALL)) == pytest.approx(rollout + 7 + 3)


def test_a_group_is_kept_at_the_acceptance_of_the_version_at_which_it_is_judged(seed):
    """Some group that a share of 0.8 keeps and one of 0.1 does not: it is kept while the engines have version 0, and
    dropped from version 11 on."""
    version = 0
    judge = judge_of(seed, Acceptance(0.8, 0.1, 12), lambda: version)
    key = next(k for p in range(99) if seed.accepted(k := GroupKey(0, p), 0.8) and not seed.accepted(k, 0.1))
    group = Group(key, Task("p", ""), [])
    assert judge(group).keep
    version = 11
    assert not judge(group).keep


def test_the_emulated_actor_takes_as_long_as_the_simulated_one(seed, tmp_path):
    """The same 8 groups through group runner, episodes, queue and emulated engine, and through the simulation."""
    w = seed.with_batch(8, 4, engines=1)
    cfg = Plan("sync", 1.0, 1.0, 2, 1, ALL).config(w, str(tmp_path))

    async def emulated() -> float:
        queue = RequestQueue(ScriptedEngine(w, 1.0), max_running=cfg.max_running, max_queue=1 << 20)
        runner = GroupRunner(
            cfg, queue, CharCodec(), SleepingEnvs(w.env_capacity), NoReward(), judge_of(w, ALL, lambda: 0)
        )
        done = await asyncio.gather(*(runner.run(GroupKey(0, p), Task("p" * PROMPT_TOKENS, "", ENV)) for p in range(8)))
        assert all(not meta.failures and len(meta.index) == 4 for meta, _ in done)
        return asyncio.get_running_loop().time()

    async def simulated() -> float:
        rollout = SimulatedRollout(w, asyncio.get_running_loop(), lambda key: True)
        await asyncio.gather(*(rollout.run_group(GroupKey(0, p), TASK) for p in range(8)))
        return asyncio.get_running_loop().time()

    assert run(emulated()) == pytest.approx(run(simulated()), rel=0.01)


def test_groups_under_way_at_the_end_of_a_prediction_are_not_called_discarded(seed):
    w = seed.with_batch(4, 4, engines=1)
    half = Acceptance(0.5, 0.5, 40)  # so that the run cannot know how many groups it still needs
    plan = Plan("pipeline", learner_s=1.0, scale=1.0, steps=4, warmup=2, acceptance=half)
    assert simulated(w, plan).ends[AFTER_THE_END] > 0
    assert figures(w, plan).discarded_groups == 0


def test_a_benchmark_that_is_interrupted_keeps_the_runs_that_are_over(seed, tmp_path, monkeypatch):
    class Stopped(Exception):
        """As a signal ends it."""

    async def once(c: object, plan: Plan) -> ModeFigures:
        if plan.mode != "sync":
            raise Stopped
        numbers = dict.fromkeys(ModeFigures.__dataclass_fields__, 0)
        return ModeFigures(
            **numbers | {"name": plan.name, "step_s": 9.0, "steps_s": [9.0], "split": {}, "staleness": {}}
        )

    monkeypatch.setattr(program, "run", once)
    args = argparse.Namespace(
        rollout_s=10.0, repeats=1, ratios=[1.0], modes=("sync", "one_step"), steps=6, time_scale=0.01,
        json=tmp_path / "runs.json",
    )  # fmt: skip
    with pytest.raises(Stopped):
        asyncio.run(program.measure(SimpleNamespace(workload=seed), args))
    assert json.loads(args.json.read_text())["1 sync"][0]["step_s"] == 9.0
