"""The control law of adaptive depth, by hand: acceptance, demand, engines."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from openrlhf_tir.config import Config
from openrlhf_tir.config.settings import load
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.pipeline.ledger.ledger import Ledger
from openrlhf_tir.pipeline.scheduler import (
    AutoDepth,
    DepthController,
    FixedDepth,
    RolloutScheduler,
    StalenessRule,
    depth_controller,
)
from openrlhf_tir.pipeline.scheduler.depth import AcceptanceWindow, EngineLoad
from openrlhf_tir.pipeline.scheduler.learner_timing import LearnerTiming
from tests.pipeline.fakes import FakePrompts

FREE = {
    "open": 1.0, "running": 100.0, "waiting": 0.0, "placed": 0.0, "aside": 0.0, "width": 100.0,
}  # fmt: skip
QUEUES = {**FREE, "waiting": 40.0}


def auto(B: int = 4, n: int = 8) -> AutoDepth:
    return AutoDepth(StalenessRule(batch_groups=B), n, LearnerTiming())


def learn(
    depth: AutoDepth, outcomes: list[bool], seconds: float = 1.0, rolling: int = 0, engines: dict | None = None
) -> AutoDepth:
    for accepted in outcomes:
        depth.group_finished(accepted, seconds, rolling, EngineLoad.from_stats(engines or {}))
    return depth


def dispatched_until_an_obstacle(
    directory: Path, depth: DepthController, max_staleness: int, max_steps: int = 1000
) -> int:
    """Dispatch groups until no more may start, and return how many roll. B = 4."""
    settings = Config.model_validate(
        {
            "run_dir": directory,
            "rollout": {"batch_size": 4},
            "pipeline": {"max_staleness": max_staleness},
            "train": {"max_steps": max_steps},
        }
    )
    scheduler = RolloutScheduler(settings, FakePrompts(1000), Ledger(directory / "ledger.jsonl"), depth)
    while scheduler.can_dispatch():
        scheduler.dispatch(now=0.0)
    return len(scheduler.rolling)


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
    window = AcceptanceWindow(256)
    for i in range(k):
        window.add(i < good)
    bound = min(n, math.ceil(window.quantile(n, 2.326)))
    assert beta_binomial_tail(n, good, k, bound) <= 0.0125
    # no more cautious than that
    assert bound == n or beta_binomial_tail(n, good, k, math.floor(0.9 * bound) - 2) > 0.01


def test_a_window_forgets_what_is_older_than_itself():
    window = AcceptanceWindow(3)
    for outcome in (True, True, False, False):
        window.add(outcome)
    assert (window.accepted, len(window)) == (1, 3)


def test_before_anything_is_known_every_rolling_group_counts():
    assert [auto().max_accepted(n) for n in (0, 1, 7)] == [0, 1, 7]


def test_a_fixed_depth_counts_every_rolling_group_and_stops_at_its_number():
    fixed = FixedDepth(3)
    assert (fixed.max_accepted(5), fixed.likely_accepted(5)) == (5, 5)
    assert fixed.wants_more(1, 1) and not fixed.wants_more(2, 1)


def test_low_acceptance_lets_more_groups_roll_than_the_bound_and_full_acceptance_does_not(tmp_path):
    """S = 2, B = 4: 12 slots. After 256 groups at 1/16, with 4 of the last 64, some 60 roll: 3.9 of 61 on average, 12
    in one of a hundred cases."""

    def admitted(outcomes: list[bool]) -> int:
        depth = learn(auto(), outcomes)
        depth.timing.step_finished(1e-9)  # a learner that is never fed enough
        rolling = dispatched_until_an_obstacle(tmp_path / f"{len(outcomes)}_{sum(outcomes)}", depth, max_staleness=2)
        assert depth.max_accepted(rolling) <= 12 < depth.max_accepted(rolling + 1) or rolling == 12
        return rolling

    assert 50 < admitted(([True] + [False] * 15) * 16) < 75
    assert admitted([True] * 256) == 12


def test_a_rise_of_acceptance_is_believed_at_once_a_fall_only_when_both_windows_saw_it():
    constant, risen = learn(auto(), [False] * 256), learn(auto(), [False] * 192 + [True] * 64)
    fallen = learn(auto(), [True] * 192 + [False] * 64)
    assert constant.max_accepted(100) < 12
    assert risen.max_accepted(100) > 95
    assert fallen.max_accepted(100) > 75  # 3 of 4 in the long window


def test_demand_is_one_batch_and_what_the_learner_takes_while_a_group_rolls():
    """B = 4, groups of 10 s, steps of 5 s: 4 (1 + 2) = 12 accepted. All accepted: 11 held ask for more, 12 do not."""
    depth = learn(auto(), [True] * 64, seconds=10.0)
    depth.timing.step_finished(5.0)
    assert depth.wants_more(9, 2) and not depth.wants_more(10, 2)
    depth.timing.step_finished(15.0)  # steps of 10 s on average: 4 (1 + 1)
    assert depth.wants_more(5, 2) and not depth.wants_more(6, 2)


def test_a_learner_that_idles_is_no_reason_to_start_less():
    """B = 4, groups of 10 s, steps of 5 s: 12 accepted are wanted, and steps begin every 5.2 s; then every 5.4 s."""
    depth = learn(auto(), [True] * 64, seconds=10.0)
    for started_at in (0.0, 5.2):
        depth.timing.step_started(started_at)
        depth.timing.step_finished(5.0)
    assert depth.wants_more(9, 2) and not depth.wants_more(10, 2)
    depth.timing.step_started(5.2 + 5.6)
    depth.timing.step_finished(5.0)
    assert depth.wants_more(1000, 0)


@pytest.mark.parametrize(("good", "held"), [(255, 31), (127, 15), (31, 15)])
def test_at_the_gate_two_batches_are_enough_or_what_a_fixed_depth_would_have(good, held):
    """B = 8, (W+1) B = 32: all accepted, half of them, an eighth."""
    depth = learn(
        AutoDepth(StalenessRule(8, batches_ahead=3), 2, LearnerTiming()),
        [True] * good + [False] * (255 - good),
    )
    assert not depth.paused_at_gate(0, held) and depth.paused_at_gate(0, held + 1)
    rolling = round((held + 1 - 8) / depth.acceptance)
    assert not depth.paused_at_gate(rolling - 8, 8) and depth.paused_at_gate(rolling, 8)


def test_demand_counts_a_rolling_group_by_its_chance():
    """63 of 256, with the one before them 64/257: half a batch of 4 in the buffer leaves 14 accepted of 16 to roll for,
    some 56 groups."""
    depth = learn(auto(), [True, False, False, False] * 64, seconds=30.0)
    depth.timing.step_finished(10.0)
    assert depth.wants_more(55, 2) and not depth.wants_more(57, 2)


def test_until_the_first_step_as_many_are_wanted_as_staleness_allows():
    depth = depth_controller(
        Config.model_validate({"rollout": {"batch_size": 8}, "pipeline": {"max_staleness": 3}}), LearnerTiming()
    )
    assert depth.wants_more(31, 0) and not depth.wants_more(32, 0)
    learn(depth, [True], rolling=31)
    assert depth.wants_more(31, 0) and not depth.wants_more(32, 0)
    depth.timing.step_finished(1.0)  # a group took 1 s too
    assert depth.wants_more(15, 0) and not depth.wants_more(16, 0)
    assert auto().wants_more(7, 0) and not auto().wants_more(8, 0)  # two batches at least


@pytest.mark.parametrize("where", ["running", "waiting", "placed"])
def test_engines_are_full_with_a_tenth_more_than_run_at_once(where):
    def starts_with(more: float) -> bool:
        return learn(auto(), [True], rolling=3, engines={**FREE, where: FREE[where] + more}).wants_more(3, 0)

    assert starts_with(9.9) and not starts_with(10.1)


def test_the_share_that_may_wait_does_not_depend_on_the_acceptance():
    rejected = learn(auto(B=40), [False] * 64, rolling=3, engines={**FREE, "waiting": 9.9})
    assert rejected.wants_more(3, 0)
    assert not learn(rejected, [False], rolling=3, engines={**FREE, "waiting": 10.1}).wants_more(3, 0)


def test_engines_that_have_run_dry_are_filled_at_once():
    """100 run at once, and 20 do now: 90 more, of groups of 8."""
    depth = learn(auto(B=40), [True], rolling=10, engines={**FREE, "running": 20.0})
    assert depth.wants_more(10 + 11, 0) and not depth.wants_more(10 + 12, 0)


def test_groups_admitted_since_the_engines_told_count_with_all_of_their_samples():
    """100 sequences run: 10 may wait, which are two groups of 8."""
    depth = learn(auto(B=40), [True], rolling=50, engines=FREE)
    assert depth.wants_more(51, 0) and not depth.wants_more(52, 0)
    learn(depth, [True], rolling=52, engines=FREE)  # the engines have taken them up
    assert depth.wants_more(52, 0)


def test_an_evaluations_sequences_keep_no_group_from_starting():
    crowded = {**FREE, "waiting": 50.0}
    assert not learn(auto(B=40), [True], rolling=50, engines=crowded).wants_more(50, 0)
    assert learn(auto(B=40), [True], rolling=50, engines={**crowded, "aside": 48.0}).wants_more(50, 0)


def test_a_group_that_failed_leaves_its_place():
    """It is not judged, so the engines were told of while it ran."""
    depth = learn(auto(B=40), [True], rolling=50, engines={**FREE, "waiting": 12.0})
    assert not depth.wants_more(50, 0) and depth.wants_more(49, 0)


def test_a_group_counts_with_all_its_samples():
    depth = depth_controller(
        Config.model_validate({"rollout": {"n_samples_per_prompt": 6, "batch_size": 8}}), LearnerTiming()
    )
    assert depth._samples == 6


def test_a_group_may_wait_at_each_engine():
    """4 engines that run one sequence each, groups of 16: 68 sequences."""
    serial = {**FREE, "open": 4.0, "running": 4.0, "width": 4.0}
    depth = learn(auto(B=40, n=16), [True], rolling=1, engines=serial)
    assert depth.wants_more(1 + 3, 0) and not depth.wants_more(1 + 4, 0)


def test_engines_that_told_long_ago_that_they_are_full_are_asked_again_when_nothing_rolls():
    depth = learn(auto(B=40), [True], rolling=1, engines={**FREE, "waiting": 400.0})
    assert not depth.wants_more(1, 0) and depth.wants_more(0, 0)


def test_engines_that_tell_nothing_are_no_bound():
    depth = learn(auto(), [True])
    assert depth.wants_more(7, 0)


def test_the_end_of_a_run_starts_as_many_as_the_last_steps_likely_need(tmp_path):
    """8 more are needed at acceptance 1/4: more than 8 roll, but not without end."""
    depth = learn(auto(), [True, False, False, False] * 64, seconds=1e3)
    depth.timing.step_finished(1.0)
    assert 32 <= dispatched_until_an_obstacle(tmp_path, depth, max_staleness=9, max_steps=2) < 64


def test_config_chooses_the_depth():
    def of(**pipeline) -> AutoDepth | FixedDepth:
        return depth_controller(
            Config.model_validate({"rollout": {"batch_size": 8}, "pipeline": pipeline}), LearnerTiming()
        )

    assert of(mode="sync") == of(mode="one_step") == FixedDepth(8)
    assert of(max_staleness=3, depth=12) == FixedDepth(12)
    assert of(max_staleness=3, depth=32) == FixedDepth(32)
    with pytest.raises(ValidationError, match=r"pipeline\.depth = 33"):
        of(max_staleness=3, depth=33)
    assert isinstance(of(max_staleness=3, depth="auto"), AutoDepth)
    assert isinstance(of(max_staleness=3), AutoDepth)
    assert of(mode="pipeline_drain") == FixedDepth(16)
    assert of(mode="pipeline_drain", max_staleness=3) == FixedDepth(32)


@pytest.mark.parametrize("value", ["many", "0", "-3", "1.5"])
def test_a_depth_that_is_neither_a_number_nor_auto_is_refused_in_one_line(value):
    with pytest.raises(ConfigError, match=rf"pipeline\.depth = .*{re.escape(value)}.*'auto'") as e:
        load(None, {"pipeline.depth": value})
    assert len(str(e.value).splitlines()) == 1


def test_auto_does_not_go_with_sync():
    with pytest.raises(ConfigError, match=r"pipeline\.depth .*pipeline\.mode = 'sync'"):
        load(None, {"pipeline.depth": "auto", "pipeline.mode": "sync"})
