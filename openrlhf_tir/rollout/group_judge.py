"""Judge a group whose trajectories are all scored: group reward, verdict of the filters, masks of single samples.

    reward shaping -> group reward -> filters, in order -> sample filter -> KEEP, or the first reason to drop the group

Registered functions are quick and are called directly; a user's functions run in worker processes, with a deadline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..config import Config, Filter, Reward
from ..config.environments import Environment, entry_of
from ..filters import GroupFilter, UserFilter, filters_of
from ..filters.samples import ALL_MASKED, SAMPLE_FILTER, SampleFilter
from ..rewards import GROUP_REWARD, load_group
from ..rewards.context import RewardContext
from ..rewards.own import GroupReward
from ..rewards.workers import Workers
from ..types import KEEP, Group, Verdict
from ..user_code.plugins import is_own, load
from . import reward_shaping

BEFORE_GROUP = "before_group"
"""Name of the reward part that holds a trajectory's reward before the group reward."""
SHAPING = "shaping"
"""Name of the reward part that holds what penalties and clipping added to the reward."""


@dataclass(frozen=True)
class _Rules:
    """How the groups of one environment are judged.

    Attributes:
        reward: The environment's reward settings.
        filter: The environment's filter settings.
        filters: The filters in order.
        sample_options: Options of the sample filter.
        max_tokens: Largest number of tokens of a response, rollout.max_new_tokens.
    """

    reward: Reward
    filter: Filter
    filters: list[GroupFilter | UserFilter]
    sample_options: dict[str, Any]
    max_tokens: int

    @classmethod
    def of(cls, environment: Environment, max_tokens: int) -> _Rules:
        """Load every function that the environment's settings name, so that a mistake shows before the first group."""
        reward = environment.reward
        settings = environment.filter
        if reward.group:
            load_group(reward.group)
        if settings.sample:
            load(SAMPLE_FILTER, settings.sample)
        sample_options = {"max_tokens": max_tokens, **settings.options}
        return cls(reward, settings, filters_of(settings), sample_options, max_tokens)


class GroupJudge:
    """Judges groups by the rules of their environments. Owned by a rollout actor."""

    def __init__(self, cfg: Config, workers: Workers) -> None:
        """Load all functions.

        Raises:
            ConfigError: A name cannot be loaded.
        """
        self.workers = workers
        self._rules = {
            name: _Rules.of(environment, cfg.rollout.max_new_tokens) for name, environment in cfg.environments.items()
        }

    async def __call__(self, group: Group) -> Verdict:
        """Set the rewards, parts and masks of the group's trajectories and return the verdict.

        Raises:
            RewardError: The group reward failed.
            FilterError: A filter failed.
        """
        rules = entry_of(self._rules, group.task.env)
        self._shape_rewards(group, rules)
        await self._apply_group_reward(group, rules.reward)
        for group_filter in rules.filters:
            verdict: Verdict
            if isinstance(group_filter, UserFilter):
                verdict = await self.workers.run(group_filter, group, rules.filter.options)
            else:
                verdict = group_filter(group)
            if not verdict.keep:
                return verdict
        return await self._mask_samples(group, rules)

    def _shape_rewards(self, group: Group, rules: _Rules) -> None:
        if not reward_shaping.is_active(rules.reward):
            return
        for trajectory in group.valid:
            before = trajectory.scored
            trajectory.reward = reward_shaping.shaped_reward(
                before, trajectory, rules.reward, max_tokens=rules.max_tokens
            )
            trajectory.parts[SHAPING] = trajectory.reward - before

    async def _apply_group_reward(self, group: Group, reward: Reward) -> None:
        if reward.group is None:
            return
        context = RewardContext(reward, group.task.run, reward.group_options)
        rewards, group.changes = await self._run(
            GroupReward(reward.group), is_own(GROUP_REWARD, reward.group), group, context
        )
        for trajectory, value in zip(group.valid, rewards, strict=True):
            trajectory.parts[BEFORE_GROUP] = trajectory.scored
            trajectory.reward = value

    async def _mask_samples(self, group: Group, rules: _Rules) -> Verdict:
        """Mask samples, and drop the group if none is left to train."""
        name = rules.filter.sample
        if name is None:
            return KEEP
        reasons = await self._run(SampleFilter(name), is_own(SAMPLE_FILTER, name), group, rules.sample_options)
        for trajectory, reason in zip(group.valid, reasons, strict=True):
            trajectory.masked = reason
        return KEEP if "" in reasons else Verdict(False, ALL_MASKED)

    async def _run(self, function: Any, is_user_code: bool, *args: Any) -> Any:
        return await self.workers.run(function, *args) if is_user_code else function(*args)
