"""The keeper, whose looks fail or find nobody: the run goes on without a lane."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from openrlhf_tir.config import Config
from openrlhf_tir.pipeline.lane.keeper import MIN_ENDED, LaneKeeper, fast_lane
from openrlhf_tir.pipeline.lane.speeds import ENOUGH
from openrlhf_tir.pipeline.scheduler import StalenessRule
from openrlhf_tir.pipeline.scheduler.learner_timing import LearnerTiming
from openrlhf_tir.simulation.virtual_loop import run


class Engines:
    """A rollout with these engines. What was reserved, call by call."""

    def __init__(self, *names: str) -> None:
        self.engines, self.reserved, self.faults = list(names), [], 0
        """`faults`: of the next looks."""

    async def under_way(self) -> list:
        if self.faults:
            self.faults -= 1
            raise OSError("a bug in the look")
        return []

    def reserve(self, lanes, live) -> None:
        self.reserved.append(set(lanes))


def state(**facts) -> SimpleNamespace:
    return SimpleNamespace(
        **(
            {
                "version": 3,
                "timing": LearnerTiming(step_s=60.0, work_s=60.0),
                "rule": StalenessRule(batch_groups=8, batches_ahead=4),
                "rolling": {},
                "depth": SimpleNamespace(metrics=dict),
            }
            | facts
        )
    )


async def test_while_no_engine_is_up_there_is_nothing_to_divide():
    rollout = Engines()
    cfg = Config.model_validate({"rollout": {"batch_size": 8, "n_samples_per_prompt": 4}})
    keeper = LaneKeeper(cfg, state(), rollout, longest=1000, slots=64, tick_s=2.0)
    keeper.lengths.finished([10] * MIN_ENDED)
    keeper.speeds.record(lane=False, tokens=ENOUGH, seconds=100.0, sharers=32)
    await keeper.tick(0.0)
    assert keeper.size is None and rollout.reserved == [set()]
    rollout.engines = ["a", "b"]
    await keeper.tick(4.0)
    assert keeper.size is not None


def test_looks_that_fail_however_often_free_the_lanes_and_end_no_run():
    cfg = Config.model_validate({"vllm": {"num_engines": 4}, "pipeline": {"fast_lane": "auto"}})
    rollout, reserved = Engines("a", "b"), {"b"}

    async def main() -> None:
        async with fast_lane(cfg, state(), rollout):
            rollout.reserve(reserved, {})
            rollout.faults = faults = 10
            await asyncio.sleep(3600)
            assert not rollout.faults
            assert rollout.reserved[1 : 1 + faults] == [set()] * faults
            assert len(rollout.reserved) > 2 * faults, "it looks again"

    run(main())


def test_where_time_is_scaled_the_looks_are():
    cfg = Config.model_validate({"vllm": {"num_engines": 4}, "pipeline": {"fast_lane": "auto"}})

    def looks(**told: float) -> int:
        rollout = Engines("a", "b")

        async def main() -> None:
            async with fast_lane(cfg, state(), rollout, **told):
                await asyncio.sleep(10.25)

        run(main())
        return len(rollout.reserved) - 1  # and once at the end

    assert (looks(), looks(tick_s=0.5)) == (5, 20)
