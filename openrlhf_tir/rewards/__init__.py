"""Rewards: what a response, or each response of a group, is worth. config/rewards.py has their names.

    reward         (Trajectory, Task, RewardContext) -> RewardParts
    group reward   (Group, RewardContext) -> one number for each valid trajectory

A reward is a function, or a coroutine function that awaits its slow work through the context:
`await context.equal(answer, gold)` or `await context.run_in_worker(function, *args)`. A registered reward runs on the
event loop of its rollout actor, so everything else in it is quick. A reward of the user (docs/rewards.md) runs as a
whole in a worker process.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from ..config.integrations.reward_signatures import Convention, UnknownSignature, convention_of
from ..config.rewards import REWARDS
from ..types import Group, RewardParts, Task, Trajectory
from ..user_code import plugins
from .context import RewardContext

RewardFn = Callable[[Trajectory, Task, RewardContext], RewardParts | Awaitable[RewardParts]]
GroupRewardFn = Callable[[Group, RewardContext], list[float]]

GROUP_REGISTRY: dict[str, str] = {"otc": "openrlhf_tir.rewards.otc:otc_group"}


def _wrong_reward(function: Any) -> str | None:
    """Return what is wrong with a reward's signature, as the end of a sentence; None if nothing is."""
    try:
        convention_of(function)
    except UnknownSignature as error:
        return str(error)
    return None


def group_convention(function: Callable[..., Any]) -> Convention | None:
    """Return TRL's convention for a group reward that is written for it; None for one of ours."""
    try:
        convention = convention_of(function)
    except UnknownSignature:
        return None
    return convention if convention.name == "trl" else None


def _wrong_group_reward(function: Any) -> str | None:
    """Return what is wrong with a group reward's signature, as the end of a sentence; None if nothing is."""
    return None if group_convention(function) else plugins.takes(2)(function)


REWARD = plugins.Place(
    "reward",
    "reward.name",
    "(trajectory, task, context) -> RewardParts or a number, or a function of verl's or TRL's form",
    {name: reward.function for name, reward in REWARDS.items()},
    _wrong_reward,
)
GROUP_REWARD = plugins.Place(
    "group reward",
    "reward.group",
    "(group, context) -> one number per valid trajectory, or a function of TRL's form",
    GROUP_REGISTRY,
    _wrong_group_reward,
)


async def call(function: RewardFn, trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """Return the result of a reward, which may be a function or a coroutine function."""
    result = function(trajectory, task, context)
    return await result if inspect.isawaitable(result) else result


def call_now(function: RewardFn, trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """Return the result of a reward, where no event loop runs: in a worker process, a command or a test."""
    result = function(trajectory, task, context)
    return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result


async def _awaited(result: Awaitable[RewardParts]) -> RewardParts:
    return await result


def load(name: str) -> RewardFn:
    """Return the reward of this name.

    Raises:
        ConfigError: There is none, or it cannot be loaded; see plugins.py.
    """
    return plugins.load(REWARD, name)


def load_group(name: str) -> GroupRewardFn:
    """Return the group reward of this name.

    Raises:
        ConfigError: There is none, or it cannot be loaded; see plugins.py.
    """
    return plugins.load(GROUP_REWARD, name)
