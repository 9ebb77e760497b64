"""Rewards: (Trajectory, Task, config.Reward) -> RewardParts. One pure function per file; this registry names them.

A reward may take a fourth parameter `ask`: `ask(function, *args)` is `function(*args)`, evaluated by the caller wherever it is
safe and affordable to do so. Whatever can hang or burn CPU (symbolic equality, statistics of the whole text) goes through it, so
that `pool.RewardPool` can run it in another process with a deadline; everything else is quick. Called without `ask`, a reward
does all of its work on the spot.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from ..config import Reward
from ..errors import ConfigError, unknown
from ..types import RewardParts, Task, Trajectory

RewardFn = Callable[[Trajectory, Task, Reward], RewardParts]
Ask = Callable[..., Any]

REGISTRY: dict[str, str] = {
    "apibank": "openrlhf_tir.rewards.apibank:apibank",
    "artist": "openrlhf_tir.rewards.artist:artist",
    "bfcl": "openrlhf_tir.rewards.bfcl:bfcl",
    "math": "openrlhf_tir.rewards.math_outcome:math_outcome",
    "otc": "openrlhf_tir.rewards.otc:otc",
    "retool": "openrlhf_tir.rewards.retool:retool",
    "searchr1": "openrlhf_tir.rewards.searchr1:searchr1",
    "tooln1": "openrlhf_tir.rewards.tooln1:tooln1",
    "toolrl": "openrlhf_tir.rewards.toolrl:toolrl",
    "torl": "openrlhf_tir.rewards.torl:torl",
    "zerotir": "openrlhf_tir.rewards.zerotir:zerotir",
}
"""name -> "module:function"; imported when it is asked for."""


def on_the_spot(function: Callable[..., Any], *args: Any) -> Any:
    """The `ask` of a caller that has no other process to do the work."""
    return function(*args)


@cache
def load(name: str) -> RewardFn:
    """The function behind a registered name or "pkg.mod:function". ConfigError says what is wrong with the name."""
    target = REGISTRY.get(name, name)
    module, colon, attribute = target.partition(":")
    if not colon:
        raise unknown("reward", name, REGISTRY, "Set reward.name, or use 'pkg.mod:function'.")
    try:
        return getattr(import_module(module), attribute)
    except (ModuleNotFoundError, AttributeError) as e:
        raise ConfigError(f"reward.name = {name!r} cannot be loaded: {e}. Give an importable 'pkg.mod:function'.") from e
