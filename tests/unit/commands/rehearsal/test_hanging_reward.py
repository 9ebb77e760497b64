"""A reward that does not end is called until that is known, not once for every episode."""

from __future__ import annotations

import asyncio

import pytest

from openrlhf_tir.commands.rehearsal.rewards import NotScored, RewardsUntilOneHangs
from openrlhf_tir.errors import InfraError, RewardError
from openrlhf_tir.rewards.workers import CpuSpent, Late
from openrlhf_tir.types import RewardParts
from openrlhf_tir.user_code.failures import Overrun, Starved


def _caused_by(cause: BaseException) -> InfraError:
    error = RewardError("the reward failed")
    error.__cause__ = cause
    return error


class Failing:
    """Rewards that raise an error from the `first` call on."""

    def __init__(self, error: Exception, first: int) -> None:
        self.error = error
        self.first = first
        self.calls = 0

    async def score(self, trajectory, task):
        self.calls += 1
        if self.calls >= self.first:
            await asyncio.sleep(0)
            raise self.error
        return RewardParts(1.0, True, {})


def scored(error, first, episodes=14, at_once=2):
    """Return the number of calls, and what became of each episode."""
    rewards = Failing(error, first)
    until = RewardsUntilOneHangs(rewards, at_once)

    async def score_all():
        return await asyncio.gather(*(until.score(None, None) for _ in range(episodes)), return_exceptions=True)

    results = asyncio.run(score_all())
    return rewards.calls, [type(result) for result in results]


@pytest.mark.parametrize("error", [CpuSpent("5 s"), Late("12 s"), _caused_by(Overrun()), _caused_by(Starved())])
def test_no_call_begins_after_one_that_used_up_its_time(error):
    calls, results = scored(error, first=4)
    assert calls == 5, "the fifth ran beside the fourth"
    assert results == [RewardParts] * 3 + [type(error)] * 2 + [NotScored] * 9


def test_a_reward_that_raises_is_called_for_every_episode():
    calls, results = scored(_caused_by(KeyError("answer")), first=4)
    assert calls == 14 and results == [RewardParts] * 3 + [RewardError] * 11
