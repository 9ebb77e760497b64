"""Filters decide which groups are trained: each is a function `Group -> Verdict(keep, reason)`.

The filters of `filter.names` run in that order. The first that drops a group ends the search, and its reason is the
name of the metric that counts dropped groups.

    accuracy        drops a group whose share of correct answers is outside of filter.accuracy_range
    reward          drops a group whose mean reward is outside of filter.reward_range
    zero_variance   drops a group whose rewards are all equal
    length_gap      drops a group in which length separates right from wrong answers
    truncated       drops a group in which too many responses hit the length limit
    verifiers       drops a group in which too many answers could not be checked (ZeroTIR)
    length_balance  drops a group whose samples all have lengths at which hardly any answer is right (ZeroTIR). It
                    compares the latest groups of the run, so the controller applies it, after all others

Filters see only valid trajectories: one that a fault ended says nothing about the prompt. `reward`, and `correct` in
`parts`, are set on each of them. A filter of the user's is `(group, options) -> (keep, reason)`; see docs/rewards.md.
Filters of single samples, which mask a sample's loss and keep its group, are in samples.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from ..config import Filter
from ..errors import FilterError
from ..rewards import accept
from ..types import Group, Verdict
from ..user_code import plugins
from ..user_code.failures import UserFunction
from .accuracy_range import accuracy_range
from .length_gap import length_gap
from .reward_range import reward_range
from .truncated import truncated
from .zero_variance import zero_variance
from .zerotir import verifiers

GroupFilter = Callable[[Group], Verdict]


def _reward(settings: Filter) -> GroupFilter:
    # Filter.order contains "reward" only if the range is set.
    assert settings.reward_range is not None
    return reward_range(*settings.reward_range)


BUILDERS: dict[str, Callable[[Filter], GroupFilter]] = {
    "accuracy": lambda settings: accuracy_range(*settings.accuracy_range),
    "reward": _reward,
    "zero_variance": lambda settings: zero_variance,
    "length_gap": lambda settings: length_gap(settings.limit_of("length_gap")),
    "truncated": lambda settings: truncated(settings.limit_of("truncated")),
    "verifiers": lambda settings: verifiers,
}
"""Name of a filter -> function that builds it from the [filter] section."""
LENGTH_BALANCE = "length_balance"
"""This filter compares groups of different prompts, so it is in pipeline/method_state.py."""
FILTER = plugins.Place(
    "filter",
    "filter.names",
    "(group, options) -> (keep, reason)",
    dict.fromkeys([*BUILDERS, LENGTH_BALANCE], __name__),
    plugins.takes(2),
)


@dataclass(frozen=True)
class UserFilter(UserFunction):
    """A group filter of the user's."""

    error: ClassVar[type[FilterError]] = FilterError
    """What it raises where the filter ends its process."""

    def __call__(self, group: Group, options: dict[str, Any]) -> Verdict:
        """Load the filter and apply it.

        Raises:
            FilterError: The filter raised, or did not return a verdict.
        """
        loaded = accept.LoadedFunction.load(FILTER, self.name, FilterError)
        with loaded.guarded():
            verdict = accept.verdict(loaded.function(group, options))
        return verdict


def filters_of(settings: Filter) -> list[GroupFilter | UserFilter]:
    """Return the filters that run beside the rollout actor, in order.

    Raises:
        ConfigError: A name is not registered and cannot be loaded.
    """
    filters: list[GroupFilter | UserFilter] = []
    for name in settings.order:
        if name in BUILDERS:
            filters.append(BUILDERS[name](settings))
        elif name != LENGTH_BALANCE:
            plugins.load(FILTER, name)
            filters.append(UserFilter(name))
    return filters
