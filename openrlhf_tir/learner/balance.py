"""Balance: which rank trains which trajectory. GroupMeta of the batch -> rank_of. Pure, no torch: the controller runs it.

Longest processing time first: the longest sequence goes to the rank with the fewest tokens so far. The busiest rank then holds at
most one (the last placed) sequence more than the average, and a ZeRO-3 step is as slow as its busiest rank.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from ..types import GroupMeta


def lpt(lengths: Sequence[int], bins: int) -> list[int]:
    """The bin of each item. Deterministic: equal lengths keep their order, equal bins fill from the lowest."""
    loads = [(0, b) for b in range(bins)]
    placed = [0] * len(lengths)
    for item in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        load, chosen = heapq.heappop(loads)
        placed[item] = chosen
        heapq.heappush(loads, (load + lengths[item], chosen))
    return placed


def assign_ranks(metas: Sequence[GroupMeta], world_size: int, samples: Sequence[tuple[int, int]] | None = None) -> dict[tuple[int, int], int]:
    """rank_of[(b, i)] for the i-th *valid* trajectory of the b-th group, balanced by prompt + response tokens and those of its branches.

    A masked one costs nothing. `samples`: those of one update; default: all.
    """
    keys = [(b, i) for b, meta in enumerate(metas) for i in range(len(meta.response_tokens))] if samples is None else list(samples)
    lengths = [_tokens(metas[b], i) for b, i in keys]
    return dict(zip(keys, lpt(lengths, world_size), strict=True))


def _tokens(meta: GroupMeta, i: int) -> int:
    if meta.masked and meta.masked[i]:
        return 0
    return meta.prompt_tokens + meta.response_tokens[i] + (meta.branch_tokens[i] if meta.branch_tokens else 0)
