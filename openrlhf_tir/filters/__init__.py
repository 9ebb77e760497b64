"""Filters: Group -> Verdict(keep, reason). One file per filter; the first that drops a group wins, its reason is the metric.

Only valid trajectories count: one that an infrastructure fault ended says nothing about the prompt. Their `reward`, and `correct` in their
`parts`, must be set. `build` leaves out filters that the configuration switches off.
"""

from __future__ import annotations

from collections.abc import Callable

from ..config import Filter
from ..types import KEEP, Group, Verdict
from .accuracy_range import accuracy_range
from .length_gap import length_gap
from .truncated import truncated
from .zero_variance import zero_variance

GroupFilter = Callable[[Group], Verdict]


def build(cfg: Filter) -> GroupFilter:
    """The filters that `cfg` asks for, as one. Accuracy comes first: "all right" says more than "all equal"."""
    filters: list[GroupFilter] = [accuracy_range(*cfg.accuracy_range)]
    if cfg.zero_variance:
        filters.append(zero_variance)
    if cfg.max_length_gap is not None:
        filters.append(length_gap(cfg.max_length_gap))
    if cfg.max_truncated < 1:
        filters.append(truncated(cfg.max_truncated))

    def judge(group: Group) -> Verdict:
        return next((v for f in filters if not (v := f(group)).keep), KEEP)

    return judge
