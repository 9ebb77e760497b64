"""The fast lane in the real loop, on the virtual clock: faster, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from openrlhf_tir.pipeline.lane.policy import LanePolicy
from openrlhf_tir.simulation.faults import Fault
from openrlhf_tir.simulation.run import Result, configure, simulate
from openrlhf_tir.simulation.workload import SEED_WORKLOAD, Workload
from openrlhf_tir.types import GroupKey

LEARNER_S = 48.0


@pytest.fixture(scope="module")
def small() -> Workload:
    """The seed workload with a quarter of the prompts on engines of a quarter of the size."""
    seed = Workload.read(SEED_WORKLOAD)
    engine = replace(seed.engine, max_running=64, decode_tokens_per_s=((1, 60), (8, 375), (32, 1000), (64, 1375)))
    return replace(replace(seed, engine=engine).with_batch(32, 16), steps=14)


@pytest.fixture
def moves(monkeypatch) -> list[tuple[tuple[GroupKey, int], str]]:
    """The moves of responses that the policy of the test's runs has asked for: response and engine."""
    asked: list[tuple[tuple[GroupKey, int], str]] = []
    decide = LanePolicy.moves

    def recorded(self, *args, **kwargs):
        decided = decide(self, *args, **kwargs)
        asked.extend(decided)
        return decided

    monkeypatch.setattr(LanePolicy, "moves", recorded)
    return asked


def simulated(workload: Workload, lane: int | str, faults: tuple[Fault, ...] = ()) -> Result:
    depth = 5 * workload.prompts
    return simulate(
        workload, configure(workload, mode="pipeline", depth=depth, fast_lane=lane), learner_s=LEARNER_S, faults=faults
    )


@pytest.mark.slow
@pytest.mark.extended
def test_a_lane_makes_steps_faster_and_drops_nothing(small, moves):
    off, on = simulated(small, "off"), simulated(small, "auto")
    assert moves
    assert on.ends.keys() <= {"buffered", "requeued/end_of_run"}
    assert on.trained_groups == off.trained_groups
    assert sum(on.staleness.values()) == sum(on.rows["trained_tokens"]), (
        "every token is counted once, whichever engines wrote its response"
    )
    assert on.staleness_max <= 4
    assert on.seconds < off.seconds


@pytest.mark.slow
@pytest.mark.extended
def test_with_a_slow_learner_auto_makes_no_lane_and_the_run_is_the_same(small, moves):
    cfg = configure(small, mode="pipeline", fast_lane="auto")
    off = simulate(small, configure(small, mode="pipeline"), learner_s=400.0)
    on = simulate(small, cfg, learner_s=400.0)
    assert not moves
    assert on.seconds == off.seconds and on.staleness == off.staleness


@pytest.mark.slow
def test_a_lane_that_dies_costs_attempts_and_no_prompt(small, moves):
    """Lanes are chosen by load; one of the eight is certain to be hit when all die in turn."""
    deaths = tuple(Fault("actor_death", 150.0 + 60 * i, 20.0, i) for i in range(8))
    r = simulated(small, 1, deaths)
    assert moves
    assert r.trained_groups == 32 * r.steps
    assert r.staleness_max <= 4
