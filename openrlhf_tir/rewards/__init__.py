"""Register the rewards by name.

    reward         (Trajectory, Task, RewardContext) -> RewardParts
    group reward   (Group, RewardContext) -> one number for each valid trajectory

A reward is a pure function in a file of its own. It may take a fourth parameter `ask`: `ask(function, *args)` returns
`function(*args)`, which the caller evaluates where that is safe. Whatever can hang or burn CPU (symbolic equality,
statistics of a long text) goes through it, so that `pool.RewardPool` can run it in another process with a deadline.
Everything else is quick. Called without `ask`, a reward does all of its work itself. Functions of users
(docs/rewards.md) run in such a process as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..config.integrations.reward_signatures import Convention, UnknownSignature, convention_of
from ..types import Group, RewardParts, Task, Trajectory
from ..user_code import plugins
from .context import RewardContext

RewardFn = Callable[[Trajectory, Task, RewardContext], RewardParts]
GroupRewardFn = Callable[[Group, RewardContext], list[float]]
Ask = Callable[..., Any]

REGISTRY: dict[str, str] = {
    "apibank": "openrlhf_tir.rewards.apibank:apibank",
    "artist": "openrlhf_tir.rewards.artist:artist",
    "bfcl": "openrlhf_tir.rewards.bfcl:bfcl",
    "env": "openrlhf_tir.rewards.environment:environment",
    "format": "openrlhf_tir.rewards.response_format:response_format",
    "gsm8k": "openrlhf_tir.rewards.gsm8k:gsm8k",
    "math": "openrlhf_tir.rewards.math_outcome:math_outcome",
    "model": "openrlhf_tir.rewards.served.model:model",
    "otc": "openrlhf_tir.rewards.otc:otc",
    "remote": "openrlhf_tir.rewards.remote:remote",
    "retool": "openrlhf_tir.rewards.retool:retool",
    "searchr1": "openrlhf_tir.rewards.searchr1:searchr1",
    "tooln1": "openrlhf_tir.rewards.tooln1:tooln1",
    "toolrl": "openrlhf_tir.rewards.toolrl:toolrl",
    "torl": "openrlhf_tir.rewards.torl:torl",
    "verl": "openrlhf_tir.rewards.verl_default:verl_default",
    "zerotir": "openrlhf_tir.rewards.zerotir:zerotir",
}
"""Name of a reward -> "module:function", which is imported when it is needed."""

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
    REGISTRY,
    _wrong_reward,
)
GROUP_REWARD = plugins.Place(
    "group reward",
    "reward.group",
    "(group, context) -> one number per valid trajectory, or a function of TRL's form",
    GROUP_REGISTRY,
    _wrong_group_reward,
)


def on_the_spot(function: Callable[..., Any], *args: Any) -> Any:
    """Call the function here: the `ask` of a caller that has no other process for the work."""
    return function(*args)


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
