"""The keeper, whose looks fail or find nobody: the run goes on without a lane."""

from __future__ import annotations

from types import SimpleNamespace

from openrlhf_tir.pipeline.lane.keeper import MIN_ENDED, LaneKeeper
from openrlhf_tir.pipeline.lane.speeds import ENOUGH


class Engines:
    """A rollout with these engines. What was reserved, call by call."""

    def __init__(self, *names: str) -> None:
        self.engines, self.reserved = list(names), []

    async def under_way(self) -> list:
        return []

    def reserve(self, lanes) -> None:
        self.reserved.append(set(lanes))


def state(**facts) -> SimpleNamespace:
    return SimpleNamespace(**({"version": 3, "step_s": 60.0, "ahead": 4, "rolling": {}, "depth": SimpleNamespace(facts=dict)} | facts))


async def test_while_no_engine_is_up_there_is_nothing_to_divide():
    rollout = Engines()
    keeper = LaneKeeper(state(), rollout, longest=1000, slots=64, responses=32)
    keeper.lengths.finished([10] * MIN_ENDED)
    keeper.speeds.measured(lane=False, tokens=ENOUGH, seconds=100.0, sharers=32)
    await keeper.tick(0.0)
    assert keeper.size is None and rollout.reserved == [set()]
    rollout.engines = ["a", "b"]
    await keeper.tick(4.0)
    assert keeper.size is not None
