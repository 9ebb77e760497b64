"""The rewards of a rehearsal: once a call has used up its time, no other of its environment begins.

A reward that does not end is found by its first call. If every episode waited for its own, the check would take
minutes to say the same.
"""

from __future__ import annotations

import asyncio

from ...errors import InfraError
from ...rollout.group_runner import Rewards
from ...types import RewardParts, Task, Trajectory


class NotScored(InfraError):
    """Raised in place of a reward that was not computed, because an earlier one did not end."""

    reason = "not_scored"


class RewardsUntilOneHangs:
    """Rewards (group_runner.py) that are computed until one of the same environment uses up its time."""

    def __init__(self, rewards: Rewards, at_once: int) -> None:
        """Create the rewards.

        Args:
            rewards: What computes them.
            at_once: Number of calls that may run side by side.
        """
        self.rewards = rewards
        self._turns = asyncio.Semaphore(at_once)
        self._hung: set[str] = set()
        """Environments of which a reward used up its time."""

    async def score(self, trajectory: Trajectory, task: Task) -> RewardParts:
        """Return the reward of a trajectory.

        Raises:
            NotScored: An earlier call used up its time.
            InfraError: See RewardPool.score.
        """
        async with self._turns:
            if task.env in self._hung:
                raise NotScored("an earlier call of the reward did not end")
            try:
                return await self.rewards.score(trajectory, task)
            except InfraError as error:
                if error.out_of_time:
                    self._hung.add(task.env)
                raise
