"""The fast lane's arithmetic by hand: survival, speeds, sizes, and who moves."""

from __future__ import annotations

import numpy as np
import pytest

from openrlhf_tir.pipeline.lane.lengths import BINS, Lengths
from openrlhf_tir.pipeline.lane.policy import LanePolicy
from openrlhf_tir.pipeline.lane.sizing import Cluster, Size, best_size
from openrlhf_tir.pipeline.lane.speeds import Speeds
from openrlhf_tir.simulation.rollout import UnderWay
from openrlhf_tir.types import GroupKey

# --- lengths


def test_a_response_that_is_under_way_counts_among_those_that_got_so_far():
    """Bins of one token. Ended at 1, 1, 3; under way at 2. Of 4 two end at 1, of the one that is left at 3 (the other
    was last seen at 2) all."""
    lengths = Lengths(BINS)
    lengths.finished([1, 1, 3])
    survival_K = lengths.survival([2])
    assert survival_K[:6].tolist() == [1.0, 1.0, 0.5, 0.5, 0.0, 0.0]
    assert Lengths(BINS).survival([5, 7]).tolist() == [1.0] * (BINS + 1)


def test_planned_for_is_what_one_response_of_a_batch_gets_to():
    lengths = Lengths(BINS)
    lengths.finished([9] * 99 + [99])
    assert lengths.reach(lengths.survival([]), 50) == 10  # one of a hundred goes further: of 50 none is expected to
    assert lengths.reach(lengths.survival([]), 200) == 100


def test_without_a_measured_end_the_whole_budget_is_planned_for():
    lengths = Lengths(1000)
    assert lengths.reach(lengths.survival([]), 100) == 1000


# --- speeds


def test_two_measured_occupancies_give_the_line():
    """t(n) = 0.02 + 0.0001 n."""
    speeds = Speeds(256)
    speeds.record(lane=False, tokens=100_000, seconds=100_000 * 0.04, sharers=200)
    speeds.record(lane=True, tokens=100_000, seconds=100_000 * 0.023, sharers=30)
    assert speeds.line() == pytest.approx((0.02, 0.0001))


def test_before_a_lane_was_measured_a_lone_response_is_taken_to_be_2_5_times_as_fast():
    speeds = Speeds(100)
    assert not speeds.known
    speeds.record(lane=False, tokens=50_000, seconds=500, sharers=100)
    a, b = speeds.line()
    assert speeds.known and a == pytest.approx(0.004) and a + 100 * b == pytest.approx(0.01)


# --- sizing

POSITIONS_K = np.linspace(0, 8192, 129)


def cluster(**changes) -> Cluster:
    """The seed workload's, with R:T = 4:1 and pushes counted as part of the speeds."""
    facts = {"engines": 8, "slots": 256, "responses": 2048, "step_s": 50.0, "ahead": 4, "a_s": 0.0178, "b_s": 0.00012}
    return Cluster(**(facts | changes))


def long_tailed(median: float = 700.0, sigma: float = 0.9235) -> np.ndarray:
    """[K] P(length > position), lognormal and cut at 8,192."""
    from math import erf, log, sqrt

    survival = [
        1.0 if x <= 0 else 0.5 - 0.5 * erf((log(x) - log(median)) / (sigma * sqrt(2))) for x in POSITIONS_K[:-1]
    ]
    return np.array([*survival, 0.0])


def test_a_long_tail_and_a_fast_learner_ask_for_lanes():
    alone = best_size(cluster(), POSITIONS_K, long_tailed(), 8192, most=0)
    size = best_size(cluster(), POSITIONS_K, long_tailed(), 8192, most=4)
    assert alone.lanes == 0 < size.lanes <= 4
    assert size.places < 256 // 2
    assert size.period_s < 0.97 * alone.period_s


@pytest.mark.parametrize("changes", [{"step_s": 400.0}, {"ahead": 16}], ids=["a slow learner", "much staleness"])
def test_there_is_no_lane_where_it_gains_nothing(changes):
    assert best_size(cluster(**changes), POSITIONS_K, long_tailed(), 8192, most=4).lanes == 0


def test_responses_of_one_length_need_no_lane():
    """All get to the end: a lane is no faster for one without being slower for the next."""
    assert best_size(cluster(), POSITIONS_K, np.array([1.0] * 128 + [0.0]), 8192, most=4).lanes == 0


def test_a_fixed_number_of_lanes_is_kept():
    assert best_size(cluster(step_s=400.0), POSITIONS_K, long_tailed(), 8192, most=2, least=2).lanes == 2


# --- policy


def policy(lanes: int = 1, places: int = 2, **load: int) -> LanePolicy:
    p = LanePolicy()
    p.resize(Size(lanes, places, 60.0), load)
    return p


def response(name: str, engine: str, tokens: int, left_s: float, moves: int = 0) -> tuple[UnderWay, float]:
    return UnderWay(GroupKey(0, ord(name), 0), 0, engine, tokens, moves, trajectory=None), left_s


def names(moves) -> list[str]:
    return [chr(response.group.prompt) for response, _ in moves]


def test_the_emptiest_engines_become_lanes_and_one_stays_for_new_groups():
    assert policy(1, a=5, b=2, c=9).lanes == {"b"}
    assert len(policy(3, a=5, b=2, c=9).lanes) == 2


def test_who_is_latest_goes_first_and_nobody_without_a_free_place():
    """Lane b has 2 places and one sequence. At .1 s a token 1,000 more tokens take 100 s: x is 50 s late, y 20 s, z has
    10 s to spare."""
    p = policy(1, 2, a=3, b=1)
    late = [
        response("z", "a", 0, 110.0),
        response("y", "a", 0, 80.0),
        response("x", "a", 0, 50.0),
        response("w", "b", 500, 10.0),
    ]
    assert names(p.moves(late, 1000, 0.1)) == ["x"]
    assert names(policy(1, 9, a=3, b=1).moves(late, 1000, 0.1)) == ["x", "y"]


def test_a_response_has_two_moves():
    p = policy(1, 9, a=3, b=0)
    assert names(p.moves([response("x", "a", 0, 0.0, moves=2), response("y", "a", 0, 0.0, moves=1)], 1000, 0.1)) == [
        "y"
    ]


def test_a_lane_that_dies_is_none_and_too_many_are_given_up_only_after_some_time():
    p = policy(2, a=5, b=2, c=1, d=7)
    assert p.lanes == {"b", "c"}
    p.gone({"a", "b", "d"})
    assert p.lanes == {"b"}
    for _ in range(2):
        p.resize(Size(0, 0, 60.0), {"a": 5, "b": 2, "d": 7})
        assert p.lanes == {"b"}
    p.resize(Size(0, 0, 60.0), {"a": 5, "b": 2, "d": 7})
    assert not p.lanes
