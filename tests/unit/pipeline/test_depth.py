"""The control law of adaptive depth, by hand: acceptance, demand, engines."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from openrlhf_tir.config import Config
from openrlhf_tir.config.settings import load
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.pipeline.budget import Budget
from openrlhf_tir.pipeline.depth import AutoDepth, FixedDepth, Window, depth_for

FREE = {"running": 100.0, "waiting": 0.0, "preemptions": 0.0}
QUEUES = {"running": 100.0, "waiting": 40.0, "preemptions": 0.0}


def auto(B: int = 4, start: int = 12, risk: float = 0.01) -> AutoDepth:
    """With a cap of `start`."""
    depth = AutoDepth(batch_groups=B, risk=risk)
    depth.cap = float(start)
    return depth


def learn(
    depth: AutoDepth, outcomes: list[bool], seconds: float = 1.0, rolling: int = 0, engines: dict | None = None
) -> AutoDepth:
    for accepted in outcomes:
        depth.finished(accepted, seconds, rolling, engines or {})
    return depth


def beta_binomial_tail(n: int, good: int, k: int, above: int) -> float:
    """P(more than `above` of n are good), after `good` of k, under a flat prior."""
    a, b = 1 + good, 1 + k - good

    def log_beta(x: float, y: float) -> float:
        return math.lgamma(x) + math.lgamma(y) - math.lgamma(x + y)

    def log_pmf(x: int) -> float:
        return (
            math.lgamma(n + 1)
            - math.lgamma(x + 1)
            - math.lgamma(n - x + 1)
            + log_beta(a + x, b + n - x)
            - log_beta(a, b)
        )

    return sum(math.exp(log_pmf(x)) for x in range(above + 1, n + 1))


@pytest.mark.parametrize(
    ("n", "good", "k"),
    [(10, 6, 64), (100, 6, 64), (100, 32, 64), (400, 205, 256), (1000, 26, 256), (3000, 26, 256), (50, 256, 256)],
)
def test_the_bound_on_accepted_groups_is_the_99_percent_quantile(n, good, k):
    window = Window(256)
    for i in range(k):
        window.add(i < good)
    bound = min(n, math.ceil(window.predict(n, 2.326)))
    assert beta_binomial_tail(n, good, k, bound) <= 0.0125
    # no more cautious than that
    assert bound == n or beta_binomial_tail(n, good, k, math.floor(0.9 * bound) - 2) > 0.01


def test_a_window_forgets_what_is_older_than_itself():
    window = Window(3)
    for outcome in (True, True, False, False):
        window.add(outcome)
    assert (window.good, list(window.outcomes)) == (1, [True, False, False])


def test_before_anything_is_known_every_rolling_group_counts():
    assert [auto().possible(n) for n in (0, 1, 7)] == [0, 1, 7]


def test_a_fixed_depth_counts_every_rolling_group_and_stops_at_its_number():
    fixed = FixedDepth(3)
    assert (fixed.possible(5), fixed.likely(5)) == (5, 5)
    assert fixed.wants(1, 1) and not fixed.wants(2, 1)


def test_low_acceptance_lets_more_groups_roll_than_the_bound_and_full_acceptance_does_not():
    """S = 2, B = 4: 12 slots. After 256 groups at 1/16, with 4 of the last 64, some 60 roll: 3.9 of 61 on average, 12
    in one of a hundred cases."""

    def admitted(outcomes: list[bool]) -> int:
        depth = learn(auto(), outcomes)
        depth.stepped(1e-9)  # a learner that is never fed enough
        budget = Budget(batch_groups=4, max_staleness=2, depth=depth)
        while budget.admits():
            budget.enter()
        assert depth.possible(budget.rolling) <= 12 < depth.possible(budget.rolling + 1) or budget.rolling == 12
        return budget.rolling

    assert 50 < admitted(([True] + [False] * 15) * 16) < 75
    assert admitted([True] * 256) == 12


def test_a_rise_of_acceptance_is_believed_at_once_a_fall_only_when_both_windows_saw_it():
    constant, risen = learn(auto(), [False] * 256), learn(auto(), [False] * 192 + [True] * 64)
    fallen = learn(auto(), [True] * 192 + [False] * 64)
    assert constant.possible(100) < 12
    assert risen.possible(100) > 95
    assert fallen.possible(100) > 75  # 3 of 4 in the long window


def test_demand_is_one_batch_and_what_the_learner_takes_while_a_group_rolls():
    """B = 4, groups of 10 s, steps of 5 s: 4 (1 + 2) = 12 accepted. All accepted: 11 held ask for more, 12 do not."""
    depth = learn(auto(), [True] * 64, seconds=10.0)
    depth.stepped(5.0)
    assert depth.wants(9, 2) and not depth.wants(10, 2)
    depth.stepped(15.0)  # steps of 10 s on average: 4 (1 + 1)
    assert depth.wants(5, 2) and not depth.wants(6, 2)


def test_demand_counts_a_rolling_group_by_its_chance():
    """63 of 256, with the one before them 64/257: half a batch of 4 in the buffer leaves 14 accepted of 16 to roll for,
    some 56 groups."""
    depth = learn(auto(), [True, False, False, False] * 64, seconds=30.0)
    depth.stepped(10.0)
    assert depth.wants(55, 2) and not depth.wants(57, 2)


def test_before_the_first_step_two_batches_are_wanted():
    depth = auto()
    assert depth.wants(7, 0) and not depth.wants(8, 0)


def test_the_engine_cap_doubles_per_round_until_something_queues():
    depth = learn(auto(start=12), [True] * 12, rolling=100, engines=FREE)
    assert depth.cap == 24


def test_the_first_step_sets_the_cap_to_what_staleness_allows_once_and_it_comes_down_from_there():
    """B = 8, S = 3: 16 groups at the start, where all samples of all of them queue; 32 from the first step on."""
    depth = depth_for(Config.model_validate({"rollout": {"batch_size": 8}, "pipeline": {"max_staleness": 3}}))
    assert depth.cap == 16
    learn(depth, [True] * 8, rolling=15, engines=QUEUES)
    assert depth.cap == pytest.approx(15.2)
    depth.stepped(1.0)
    assert depth.cap == 32
    learn(depth, [True] * 16, rolling=31, engines=QUEUES)
    assert depth.cap == pytest.approx(30.4)
    depth.stepped(1.0)
    assert depth.cap == pytest.approx(30.4)


def test_a_cap_above_what_staleness_allows_stays_at_the_first_step():
    depth = AutoDepth(batch_groups=8, risk=0.01, most=32)
    depth.cap = math.inf
    depth.stepped(1.0)
    assert depth.cap == math.inf


def test_a_cap_that_does_not_bind_is_no_reason_to_raise_it():
    assert learn(auto(start=12), [True] * 12, rolling=5, engines=FREE).cap == 12


def test_queues_cut_the_cap_by_a_twentieth_once_per_half_round_and_then_it_grows_by_an_eighth_of_a_batch():
    depth = learn(auto(B=8, start=100), [True] * 49, rolling=99, engines=QUEUES)
    assert depth.cap == 100
    learn(depth, [True], rolling=99, engines=QUEUES)
    assert depth.cap == pytest.approx(95)
    learn(depth, [True] * 40, rolling=94, engines=QUEUES)
    assert depth.cap == pytest.approx(95)
    learn(depth, [True] * 95, rolling=94, engines=FREE)
    assert depth.cap == pytest.approx(96, abs=0.01)


def test_engines_are_full_when_more_than_three_tenths_of_what_runs_waits_and_not_before():
    def cap_with(waiting: float) -> float:
        return learn(
            auto(B=8, start=24),
            [True] * 12,
            rolling=23,
            engines={"running": 100.0, "waiting": waiting, "preemptions": 0.0},
        ).cap

    assert cap_with(30.0) > 24
    assert cap_with(31.0) < 24


def test_a_preemption_cuts_the_cap_by_three_tenths():
    preempted = {**FREE, "preemptions": 1.0}
    depth = learn(auto(start=100), [True] * 50, rolling=99, engines=FREE)
    depth.cap = 100.0
    learn(depth, [True], rolling=99, engines=preempted)
    assert depth.cap == pytest.approx(70)
    learn(depth, [True] * 60, rolling=50, engines=preempted)  # the counter stands still: no new preemption
    assert depth.cap == pytest.approx(70)


def test_engines_that_tell_nothing_are_no_bound():
    depth = learn(auto(start=1), [True])
    assert depth.cap == math.inf and "depth_cap" not in depth.facts()


def test_the_end_of_a_run_starts_as_many_as_the_last_steps_likely_need():
    """8 more are needed at acceptance 1/4: more than 8 roll, but not without end."""
    budget = Budget(batch_groups=4, max_staleness=9, depth=learn(auto(), [True, False, False, False] * 64, seconds=1e3))
    budget.depth.stepped(1.0)
    budget.still_needed = 8
    while budget.admits():
        budget.enter()
    assert 32 <= budget.rolling < 64


def test_config_chooses_the_depth():
    def of(**pipeline) -> AutoDepth | FixedDepth:
        return depth_for(Config.model_validate({"rollout": {"batch_size": 8}, "pipeline": pipeline}))

    assert of(mode="sync").depth == of(mode="one_step").depth == 8
    assert of(max_staleness=3, depth=12).depth == 12
    assert of(max_staleness=3, depth=32).depth == 32
    with pytest.raises(
        ValidationError, match=r"pipeline\.depth = 33 groups is more than staleness allows.*\(3 \+ 1\) \* 8 = 32"
    ):
        of(max_staleness=3, depth=33)
    assert of(max_staleness=3, depth="auto").cap == of(max_staleness=3).cap == 16
    assert of(mode="pipeline_drain").depth == 16 and of(mode="pipeline_drain", max_staleness=3).depth == 32


@pytest.mark.parametrize("value", ["many", "0", "-3", "1.5"])
def test_a_depth_that_is_neither_a_number_nor_auto_is_refused_in_one_line(value):
    with pytest.raises(ConfigError, match="neither a number of groups") as e:
        load(None, {"pipeline.depth": value})
    assert len(str(e.value).splitlines()) == 1


def test_auto_does_not_go_with_sync():
    with pytest.raises(ConfigError, match="does not go with"):
        load(None, {"pipeline.depth": "auto", "pipeline.mode": "sync"})
