"""Judge: a group whose trajectories are all scored -> its group reward, a verdict, and which of its samples are trained.

    group reward  ->  filters, in order  ->  sample filter  ->  KEEP, or the first reason

Registered functions are quick and are called on the spot; those of one's own run in the reward's worker processes, with their deadline.
"""

from __future__ import annotations

from typing import Any

from ..config import Config
from ..filters import OwnFilter, filters_of
from ..filters.samples import ALL_MASKED, SAMPLE_FILTER, SampleFilter
from ..plugins import is_own, load
from ..rewards import GROUP_REWARD, load_group
from ..rewards.context import RewardContext
from ..rewards.own import GroupReward
from ..rewards.workers import Workers
from ..types import KEEP, Group, Verdict

BEFORE_GROUP = "before_group"
"""The part that keeps what a trajectory's own reward was."""


class Judge:
    """Owned by a rollout actor. Raises ConfigError for a name that cannot be loaded."""

    def __init__(self, cfg: Config, workers: Workers) -> None:
        self.cfg, self.workers = cfg, workers
        self.filters = filters_of(cfg.filter)
        self.sample_options = {"max_tokens": cfg.rollout.max_new_tokens, **cfg.filter.options}
        if cfg.reward.group:
            load_group(cfg.reward.group)
        if cfg.filter.sample:
            load(SAMPLE_FILTER, cfg.filter.sample)

    async def __call__(self, group: Group) -> Verdict:
        """Raises RewardError or FilterError when a function of the method fails."""
        await self._reward(group)
        for f in self.filters:
            verdict = await self.workers.run(f, group, self.cfg.filter.options) if isinstance(f, OwnFilter) else f(group)
            if not verdict.keep:
                return verdict
        return await self._mask(group)

    async def _reward(self, group: Group) -> None:
        name = self.cfg.reward.group
        if name is None:
            return
        context = RewardContext(self.cfg.reward, group.task.run, self.cfg.reward.group_options)
        rewards, group.changes = await self._run(GroupReward(name), is_own(GROUP_REWARD, name), group, context)
        for trajectory, reward in zip(group.valid, rewards, strict=True):
            trajectory.parts[BEFORE_GROUP] = trajectory.scored
            trajectory.reward = reward

    async def _mask(self, group: Group) -> Verdict:
        name = self.cfg.filter.sample
        if name is None:
            return KEEP
        reasons = await self._run(SampleFilter(name), is_own(SAMPLE_FILTER, name), group, self.sample_options)
        for trajectory, reason in zip(group.valid, reasons, strict=True):
            trajectory.masked = reason
        return KEEP if "" in reasons else Verdict(False, ALL_MASKED)

    async def _run(self, function: Any, own: bool, *args: Any) -> Any:
        return await self.workers.run(function, *args) if own else function(*args)
