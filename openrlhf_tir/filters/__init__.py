"""Filters: Group -> Verdict(keep, reason), asked in the order of `filter.names`; the first that drops a group wins, its
reason is the metric.

    accuracy        mean(correct) within filter.accuracy_range
    reward          mean(reward) within filter.reward_range
    zero_variance   all rewards equal
    length_gap      length tells right from wrong
    truncated       too many hit the length limit
    verifiers       too many have no verdict (zerotir)
    length_balance  only samples of hopeless lengths (zerotir); looks at the run's latest groups, so the controller asks
                    it, last of all

Only valid trajectories count: one that a fault ended says nothing about the prompt. Their `reward`, and `correct` in
their `parts`, are set. A filter of one's own is (group, options) -> (keep, reason); see docs/rewards.md. Which
*samples* of a kept group are not trained is in samples.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from .. import plugins
from ..config import Filter
from ..errors import FilterError
from ..rewards import accept
from ..types import KEEP, Group, Verdict
from .accuracy_range import accuracy_range
from .length_gap import length_gap
from .reward_range import reward_range
from .truncated import truncated
from .zero_variance import zero_variance
from .zerotir import verifiers

GroupFilter = Callable[[Group], Verdict]


def _reward(c: Filter) -> GroupFilter:
    assert c.reward_range is not None, "in its order only where it is set"
    return reward_range(*c.reward_range)


def _length_gap(c: Filter) -> GroupFilter:
    assert c.max_length_gap is not None, "in its order only where it is set"
    return length_gap(c.max_length_gap)


MAKERS: dict[str, Callable[[Filter], GroupFilter]] = {
    "accuracy": lambda c: accuracy_range(*c.accuracy_range),
    "reward": _reward,
    "zero_variance": lambda c: zero_variance,
    "length_gap": _length_gap,
    "truncated": lambda c: truncated(c.max_truncated),
    "verifiers": lambda c: verifiers(c.max_verifier_failures),
}
LENGTH_BALANCE = "length_balance"
"""Needs the groups of other prompts: pipeline/method_state.py."""
FILTER = plugins.Place(
    "filter",
    "filter.names",
    "(group, options) -> (keep, reason)",
    dict.fromkeys([*MAKERS, LENGTH_BALANCE], __name__),
    plugins.takes(2),
)


@dataclass(frozen=True)
class OwnFilter:
    """A filter of one's own by its name, so that it can be asked in another process."""

    name: str
    user_code: ClassVar[bool] = True
    """It is interrupted where it is when it uses up its time (rewards/workers.py)."""

    @property
    def __name__(self) -> str:
        """The name that the workers' messages use."""
        return self.name.rpartition(":")[2]

    def __call__(self, group: Group, options: dict[str, Any]) -> Verdict:
        function = plugins.load(FILTER, self.name)
        with accept.named(FILTER, self.name, function, FilterError):
            result = function(group, options)
        return accept.verdict(result, FILTER, self.name, function)


def filters_of(cfg: Filter) -> list[GroupFilter | OwnFilter]:
    """What is asked beside the actor, in order. Raises ConfigError for a name that is not registered nor loadable."""
    found: list[GroupFilter | OwnFilter] = []
    for name in cfg.order:
        if name in MAKERS:
            found.append(MAKERS[name](cfg))
        elif name != LENGTH_BALANCE:
            plugins.load(FILTER, name)
            found.append(OwnFilter(name))
    return found


def build(cfg: Filter) -> GroupFilter:
    """The filters that `cfg` asks for, as one, on the spot."""
    filters = filters_of(cfg)

    def judge(group: Group) -> Verdict:
        for f in filters:
            verdict = f(group, cfg.options) if isinstance(f, OwnFilter) else f(group)
            if not verdict.keep:
                return verdict
        return KEEP

    return judge
