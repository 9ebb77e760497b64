"""Balance: which rank trains which trajectory. GroupMeta of the batch -> rank_of. Pure, no torch: the controller runs
it.

Longest processing time first: the costliest sequence goes to the rank with the least to do so far. The busiest rank
then holds at most one (the last placed) sequence more than the average, and a ZeRO-3 step is as slow as its busiest
rank.

    cost(L) = L + L^2 / parity        operations of a sequence of L tokens, in those of a token without attention
                                      (model_size.attention_parity)
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from ..types import GroupMeta


def lpt(costs: Sequence[float], bins: int) -> list[int]:
    """The bin of each item. Deterministic: equal costs keep their order, equal bins fill from the lowest."""
    loads = [(0.0, b) for b in range(bins)]
    placed = [0] * len(costs)
    for item in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        load, chosen = heapq.heappop(loads)
        placed[item] = chosen
        heapq.heappush(loads, (load + costs[item], chosen))
    return placed


def assign_ranks(
    metas: Sequence[GroupMeta],
    world_size: int,
    samples: Sequence[tuple[int, int]] | None = None,
    parity: float = math.inf,
) -> dict[tuple[int, int], int]:
    """rank_of[(b, i)] for the i-th *valid* trajectory of the b-th group, balanced by the cost of its prompt and
    response and of its branches.

    A masked one costs nothing. `samples`: those of one update; default: all. `parity`: as above; infinite: by tokens.
    """
    keys = (
        [(b, i) for b, meta in enumerate(metas) for i in range(len(meta.response_tokens))]
        if samples is None
        else list(samples)
    )
    return dict(zip(keys, lpt([_cost(metas[b], i, parity) for b, i in keys], world_size), strict=True))


def _cost(meta: GroupMeta, i: int, parity: float) -> float:
    if meta.masked and meta.masked[i]:
        return 0.0
    own = meta.prompt_tokens + meta.response_tokens[i]
    return own * (1 + own / parity) + (meta.branch_tokens[i] if meta.branch_tokens else 0)
