"""The simulator: hand-computed runs on constant lengths, determinism, faults, the plan, the command."""

from __future__ import annotations

import gc
import json
import math
import re
from dataclasses import replace

import pytest

from openrlhf_tir.cli import main
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.simulation.faults import Fault
from openrlhf_tir.simulation.parts import StepRecorder
from openrlhf_tir.simulation.planner import Plan, Split, recommend, splits
from openrlhf_tir.simulation.run import (
    COLLECT_AFTER,
    Result,
    batch_rollout_s,
    configure,
    learner_seconds,
    seldom_collected,
    simulate,
)
from openrlhf_tir.simulation.workload import Acceptance, EngineSpec, Lognormal, Workload
from openrlhf_tir.types import StepReport


def constant(**changes) -> Workload:
    """Every trajectory writes 100 tokens around one call of 1 s, at 10 tokens/s each, whatever runs beside it: 11 s. No
    prefill to speak of."""
    engine = EngineSpec(2, 100, 10**9, ((1.0, 10.0), (100.0, 1000.0)), 1e12, 0.5)
    workload = Workload(
        seed=1,
        time_scale=1.0,
        prompts=4,
        samples_per_prompt=2,
        steps=6,
        tool_calls=1,
        response_tokens=Lognormal(100, 100),
        observation_tokens=Lognormal(10, 10),
        env_latency_s=Lognormal(1.0, 1.0),
        env_capacity=100,
        engine=engine,
        learner_seconds_per_step=5.0,
        acceptance=Acceptance(1.0, 1.0, 6),
        late=Acceptance(0.8, 0.1, 6),
        jump=Acceptance(0.1, 0.5, 6, jump=True),
    )
    return replace(workload, **changes)


def simulated(
    workload: Workload, *, warm_up: int = 0, faults: tuple = (), acceptance: Acceptance | None = None, **pipeline
) -> Result:
    return simulate(workload, configure(workload, **pipeline), warm_up=warm_up, faults=faults, acceptance=acceptance)


def test_a_push_that_keeps_the_kv_cache_costs_no_prefill():
    """What a push finds under way is computed again at 1,000 tokens/s, or not."""
    fast = constant(learner_seconds_per_step=1.0)  # so that the engines are waited for
    slow = replace(fast, engine=replace(fast.engine, prefill_tokens_per_s=1000.0))
    took = {kv: simulated(slow, warm_up=2, kv_after_push=kv).step_s for kv in ("recompute", "keep")}
    free = {kv: simulated(fast, warm_up=2, kv_after_push=kv).step_s for kv in ("recompute", "keep")}
    assert took["keep"] < took["recompute"]
    assert free["keep"] == pytest.approx(free["recompute"])


def test_a_batch_takes_its_tokens_and_its_call():
    assert batch_rollout_s(constant()) == pytest.approx(11.0)
    assert learner_seconds(constant(learner_seconds_per_step="match")) == pytest.approx(11.0)
    assert learner_seconds(constant()) == 5.0


def test_sync_takes_rollout_step_and_push_one_after_the_other():
    """First push 0.5 s, then 6 x (11 + 5 + 0.5). Engines decode 10 of 16.5 s of each step; two calls a second idle."""
    r = simulated(constant(), mode="sync")
    assert r.seconds == pytest.approx(0.5 + 6 * 16.5)
    assert r.phases_s["step"] == pytest.approx(30)
    assert r.phases_s["wait for groups"] == pytest.approx(66)
    assert r.learner_idle == pytest.approx(1 - 30 / 99.5)
    assert r.trained_tokens == 6 * 4 * 2 * 100
    assert r.staleness == {0: 4800}
    assert r.engine_use == pytest.approx(4800 / (99.5 * 2 * 1000))


def test_one_step_hides_the_learner_behind_the_rollout():
    """The learner is done after 5.5 s of the 11: a step is 11 + 0.5 s; the push waits for the rollout to drain."""
    r = simulated(constant(), mode="one_step")
    assert r.rows["time"][:5] == pytest.approx([23, 34.5, 46, 57.5, 69])
    assert r.phases_s["drain"] == pytest.approx(5 * 6.0)  # after the last step nothing rolls
    assert set(r.staleness) == {0, 1}


def test_a_token_that_spans_a_push_counts_for_the_version_that_wrote_it():
    """S = 2 and a fast learner: tokens of one group are of two versions, and never older than S."""
    r = simulated(constant(steps=12, learner_seconds_per_step=1.0), mode="pipeline", max_staleness=2)
    assert r.staleness_max <= 2 and len(r.staleness) == 3
    assert sum(r.staleness.values()) == r.trained_tokens == 12 * 800


def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    base = constant(
        response_tokens=Lognormal(100, 900), env_latency_s=Lognormal(1, 5), acceptance=Acceptance(0.5, 0.5, 6)
    )
    runs = [simulated(replace(base, seed=seed), mode="pipeline", depth="auto") for seed in (1, 1, 2)]
    assert runs[0].rows == runs[1].rows and runs[0].staleness == runs[1].staleness
    assert runs[0].rows != runs[2].rows


def test_rejected_groups_cost_time_and_are_counted():
    r = simulated(constant(steps=30), mode="sync", acceptance=Acceptance(0.5, 0.5, 30))
    assert r.acceptance == pytest.approx(0.5, abs=0.1)
    assert r.ends["filtered"] == pytest.approx(120, abs=40)
    assert r.step_s > 16.5 + 11  # at least one more round of rollouts


def test_the_environments_capacity_makes_calls_wait():
    """Eight calls of 5 s: all at once they end with the batch at 15 s; one after the other they take 40 s, before and
    after which one writes."""
    assert batch_rollout_s(constant(env_latency_s=Lognormal(5, 5))) == pytest.approx(15)
    assert 40 < batch_rollout_s(constant(env_latency_s=Lognormal(5, 5), env_capacity=1)) < 50


def test_a_dead_actors_groups_are_issued_again_and_nothing_is_lost():
    r = simulated(constant(), mode="sync", faults=(Fault("actor_death", at_s=4.5, for_s=20, engine=1),))
    assert r.ends["requeued/engine_gone"] == 2
    assert r.ends["buffered"] == r.trained_groups == 24
    assert r.rows["time"][0] == pytest.approx(4.5 + 1 + 11 + 5.5)  # lost at 4.5 s, issued again 1 s later


def test_an_outage_of_the_environment_fails_what_waits_too_long_and_the_run_goes_on():
    workload = constant()
    cfg = configure(workload, mode="sync")
    cfg.env.step_timeout_s = 3.0
    r = simulate(workload, cfg, warm_up=0, faults=(Fault("env_outage", at_s=1.0, for_s=30),))
    assert r.ends["requeued/timeout"] >= 4
    assert r.ends["buffered"] == 24
    assert r.rows["time"][0] > 31


def test_a_short_outage_only_delays():
    """At 1 s every call has yet to start (each writes first); calls that come before 12 s wait for it."""
    r = simulated(constant(), mode="sync", faults=(Fault("env_outage", at_s=0.6, for_s=12),))
    assert not any(end.startswith("requeued") for end in r.ends)
    assert 12.6 + 1 < r.rows["time"][0] - 5.5 < 12.6 + 1 + 10


def test_a_slow_node_slows_the_steps():
    fast = simulated(constant(), mode="sync")
    slow = simulated(constant(), mode="sync", faults=(Fault("slow_node", at_s=0.5, for_s=1e6, factor=0.5),))
    assert slow.step_s == pytest.approx(fast.step_s + 10, abs=0.5)


def test_a_fault_that_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="'meteor'"):
        Fault.of({"kind": "meteor"})
    with pytest.raises(ConfigError, match=r"'slow_node'.*at_s"):
        Fault.of({"kind": "slow_node"})
    with pytest.raises(ConfigError, match=r" 7,.* 2\. .* 0\b"):
        simulated(constant(), mode="sync", faults=(Fault("slow_node", 1, 1, engine=7),))


def test_splits_leave_a_gpu_to_train_on_and_lie_around_the_balance():
    """One engine makes 4 groups in 0.8 s saturated; 8 GPUs, a step of 5 s on 2 of them: 10/g s on g. Balance at 1
    engine, as few as there can be."""
    found = splits(constant(), gpus=8, gpus_per_engine=2, learner_s=5.0, learner_gpus=2)
    assert found[0] == Split(1, 2, 6, pytest.approx(10 / 6))
    assert all(s.rollout_gpus + s.learner_gpus == 8 and s.learner_gpus >= 1 for s in found)
    with pytest.raises(ConfigError, match=r"^2 .* 2 .* 3\."):
        splits(constant(), gpus=2, gpus_per_engine=2, learner_s=5.0, learner_gpus=2)


def test_the_plan_prefers_fresh_tokens_among_the_fastest():
    def plan(seconds: float, ages: dict[int, int], S: int) -> Plan:
        r = simulated(constant(steps=1), mode="sync")
        r.seconds, r.trained_groups, r.staleness = seconds, 100, ages
        return Plan(Split(1, 1, 1, 1.0), S, r)

    slow, fast, fresh = plan(120, {0: 1}, 1), plan(100, {4: 1}, 8), plan(102, {1: 1}, 2)
    assert recommend([slow, fast, fresh]) is fresh


SMALL = [
    "--rollout.batch_size", "4", "--rollout.n_samples_per_prompt", "4", "--vllm.num_engines", "2",
    "--train.max_steps", "4",
]  # fmt: skip


@pytest.mark.slow
def test_the_command_compares_the_modes_and_draws_the_last(capsys, tmp_path):
    assert main(["simulate", *SMALL, "--plot", str(tmp_path / "run.png")]) == 0
    said = capsys.readouterr().out
    assert "one_step" in said and "0.00 (0)" in said, "mean and largest token age of sync"
    assert re.findall(r"\d+", said.splitlines()[-1])[:4] == ["2", "4", "4", "2"], "steps, prompts, samples, engines"
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_simulates_the_configuration_it_is_given(capsys):
    assert (
        main(
            [
                "simulate", *SMALL, "--json", "--scenario", "late", "--pipeline.mode", "pipeline",
                "--pipeline.depth", "auto", "--pipeline.max_staleness", "2", "--learner-seconds", "9",
            ]
        )
        == 0
    )  # fmt: skip
    (figures,) = json.loads(capsys.readouterr().out).values()
    assert figures["staleness_max"] <= 2 and figures["bound_s"] >= 9


@pytest.mark.slow
def test_the_command_plans_a_cluster(capsys):
    assert main(["simulate", *SMALL, "--gpus", "3", "--learner-seconds", "20"]) == 0
    said = capsys.readouterr().out
    assert "--vllm.num_engines" in said and "--pipeline.max_staleness" in said


def test_a_workload_that_is_not_there_is_refused(capsys):
    assert main(["simulate", "--workload", "nowhere.toml"]) == 2
    assert "nowhere.toml" in capsys.readouterr().err


def test_pythons_collector_looks_as_often_after_a_simulation_as_before():
    before, during = gc.get_threshold(), []
    workload = constant()
    with seldom_collected():
        during.append(gc.get_threshold()[0])
    simulate(workload, configure(workload))
    assert gc.get_threshold() == before and during == [COLLECT_AFTER]


def test_the_engines_tell_the_controller_what_they_hold():
    r = simulated(constant(), mode="pipeline", depth="auto")
    assert set(r.rows["width"]) == {200.0}
    assert max(r.rows["running"]) > 0 and len(r.rows["placed"]) == r.steps


@pytest.mark.slow
@pytest.mark.parametrize("places", [100, 1])
@pytest.mark.parametrize("accepted", [1.0, 0.3])
def test_with_few_groups_on_each_of_many_engines_auto_is_no_slower_than_a_fixed_depth(accepted, places):
    """8 engines for 8 groups of 16: what an engine tells is of the moment at which its last group ended, when it is
    empty; or it takes one sequence after the other, and 15 of each group wait."""
    w = constant(prompts=8, samples_per_prompt=16, learner_seconds_per_step=1.0)
    w = replace(w, engine=replace(w.engine, count=8, max_running=places))
    acceptance = Acceptance(accepted, accepted, 12)
    took = {
        depth: simulated(w, acceptance=acceptance, mode="pipeline", max_staleness=1, depth=depth).seconds
        for depth in ("auto", 16)
    }
    assert took["auto"] <= 1.01 * took[16]


def test_what_is_surplus_when_everything_is_accepted_at_once_is_counted():
    """One group in twenty is accepted, then all are: more arrive than a staleness of 1 has room for."""
    w = constant(prompts=2, steps=40, learner_seconds_per_step=0.1)
    r = simulated(w, acceptance=Acceptance(0.05, 1.0, 40, jump=True), mode="pipeline", max_staleness=1, depth="auto")
    assert r.ends["requeued/surplus"] > 0 and r.surplus_share > 0
    assert r.rows["surplus"][-1] == r.ends["requeued/surplus"]


def test_groups_that_roll_when_the_run_ends_are_counted():
    w = constant(prompts=2, steps=6)
    r = simulated(w, acceptance=Acceptance(0.5, 0.5, 6), mode="pipeline", max_staleness=1, depth="auto")
    assert r.ends["buffered"] == 12 and r.ends["requeued/end_of_run"] > 0


async def test_a_figure_that_comes_late_or_is_missing_has_a_place_in_every_step():
    recorder, report = StepRecorder(), StepReport(version=1, metrics={}, seconds=0.1, trained_tokens=4)
    for extra in ({"a": 1.0}, {"a": 2.0, "b": 3.0}, {"b": 4.0}):
        recorder.step_finished(report, batch_groups=2, rolling=0, buffered=0, extra=extra)
    assert {len(row) for row in recorder.rows.values()} == {3}
    assert recorder.rows["b"].tolist() == pytest.approx([math.nan, 3, 4], nan_ok=True)
    assert recorder.rows["a"].tolist() == pytest.approx([1, 2, math.nan], nan_ok=True)
