"""Judge: a group whose trajectories are all scored -> its group reward, a verdict, and which of its samples are
trained.

    shaping  ->  group reward  ->  filters, in order  ->  sample filter  ->  KEEP, or the first reason

Registered functions are quick and are called on the spot; one's own run in worker processes, with a deadline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..config import Config, Filter, Reward
from ..config.environments import Environment, one
from ..filters import GroupFilter, UserFilter, filters_of
from ..filters.samples import ALL_MASKED, SAMPLE_FILTER, SampleFilter
from ..plugins import is_own, load
from ..rewards import GROUP_REWARD, load_group
from ..rewards.context import RewardContext
from ..rewards.own import GroupReward
from ..rewards.workers import Workers
from ..types import KEEP, Group, Verdict
from . import reward_shaping as shaping

BEFORE_GROUP = "before_group"
"""The part that keeps what a trajectory's own reward was."""
SHAPING = "shaping"
"""The part that says what penalties and clip have added to it."""


@dataclass(frozen=True)
class _Rules:
    """What one environment's groups are judged by."""

    reward: Reward
    filter: Filter
    filters: list[GroupFilter | UserFilter]
    sample_options: dict[str, Any]
    max_tokens: int
    """The most tokens of a response, rollout.max_new_tokens."""

    @classmethod
    def of(cls, e: Environment, max_tokens: int) -> _Rules:
        if e.reward.group:
            load_group(e.reward.group)
        if e.filter.sample:
            load(SAMPLE_FILTER, e.filter.sample)
        return cls(e.reward, e.filter, filters_of(e.filter), {"max_tokens": max_tokens, **e.filter.options}, max_tokens)


class Judge:
    """Owned by a rollout actor; judges a group by the rules of its environment. Raises ConfigError for a name that
    cannot be loaded."""

    def __init__(self, cfg: Config, workers: Workers) -> None:
        self.workers = workers
        self._rules = {name: _Rules.of(e, cfg.rollout.max_new_tokens) for name, e in cfg.environments.items()}

    async def __call__(self, group: Group) -> Verdict:
        """Raises RewardError or FilterError when a function of the method fails."""
        rules = one(self._rules, group.task.env)
        self._shape(group, rules)
        await self._reward(group, rules.reward)
        for f in rules.filters:
            verdict = await self.workers.run(f, group, rules.filter.options) if isinstance(f, UserFilter) else f(group)
            if not verdict.keep:
                return verdict
        return await self._mask(group, rules)

    def _shape(self, group: Group, rules: _Rules) -> None:
        if not shaping.shapes(rules.reward):
            return
        for trajectory in group.valid:
            before = trajectory.scored
            trajectory.reward = shaping.shaped(before, trajectory, rules.reward, max_tokens=rules.max_tokens)
            trajectory.parts[SHAPING] = trajectory.reward - before

    async def _reward(self, group: Group, reward: Reward) -> None:
        if reward.group is None:
            return
        context = RewardContext(reward, group.task.run, reward.group_options)
        rewards, group.changes = await self._run(
            GroupReward(reward.group), is_own(GROUP_REWARD, reward.group), group, context
        )
        for trajectory, value in zip(group.valid, rewards, strict=True):
            trajectory.parts[BEFORE_GROUP] = trajectory.scored
            trajectory.reward = value

    async def _mask(self, group: Group, rules: _Rules) -> Verdict:
        name = rules.filter.sample
        if name is None:
            return KEEP
        reasons = await self._run(SampleFilter(name), is_own(SAMPLE_FILTER, name), group, rules.sample_options)
        for trajectory, reason in zip(group.valid, reasons, strict=True):
            trajectory.masked = reason
        return KEEP if "" in reasons else Verdict(False, ALL_MASKED)

    async def _run(self, function: Any, own: bool, *args: Any) -> Any:
        return await self.workers.run(function, *args) if own else function(*args)
