"""The group filters of a configuration, applied in this process. A run applies them beside its workers."""

from __future__ import annotations

from openrlhf_tir.config import Filter
from openrlhf_tir.filters import GroupFilter, UserFilter, filters_of
from openrlhf_tir.types import KEEP, Group, Verdict


def build(settings: Filter) -> GroupFilter:
    """Return one filter that applies all of `filters_of`."""
    filters = filters_of(settings)

    def apply(group: Group) -> Verdict:
        for group_filter in filters:
            if isinstance(group_filter, UserFilter):
                verdict = group_filter(group, settings.options)
            else:
                verdict = group_filter(group)
            if not verdict.keep:
                return verdict
        return KEEP

    return apply
