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
    *,
    share_prompts: bool = False,
) -> dict[tuple[int, int], int]:
    """rank_of[(b, i)] for the i-th *valid* trajectory of the b-th group, balanced by the cost of its prompt and
    response and of its branches.

    A masked one costs nothing.

    Args:
        samples: Those of one update; default: all.
        parity: As above; infinite: cost is the number of tokens.
        share_prompts: A rank computes a prompt once for all responses to it that it trains. Groups then stay whole
            where that makes the busiest rank less busy than spreading their trajectories.
    """
    keys = (
        [(b, i) for b, meta in enumerate(metas) for i in range(len(meta.response_tokens))]
        if samples is None
        else list(samples)
    )
    costs = [_cost(metas[b], i, parity) for b, i in keys]
    spread = lpt(costs, world_size)
    if not share_prompts or world_size == 1:
        return dict(zip(keys, spread, strict=True))
    prompt_costs = [_sequence_cost(meta.prompt_tokens, parity) for meta in metas]

    def shared_costs(owners: Sequence[tuple[int, int]]) -> dict[tuple[int, int], float]:
        """Cost of each (group, owner): one prompt, and the rest of the group's trajectories that this owner has."""
        total: dict[tuple[int, int], float] = {}
        for (b, owner), cost in zip(owners, costs, strict=True):
            if cost:
                total[b, owner] = total.get((b, owner), prompt_costs[b]) + cost - prompt_costs[b]
        return total

    def busiest(ranks: Sequence[int]) -> float:
        loads = [0.0] * world_size
        for (_, rank), cost in shared_costs([(b, rank) for (b, _), rank in zip(keys, ranks, strict=True)]).items():
            loads[rank] += cost
        return max(loads)

    of_groups = shared_costs([(b, 0) for b, _ in keys])
    groups = sorted({b for b, _ in keys})
    rank_of_group = dict(zip(groups, lpt([of_groups.get((b, 0), 0.0) for b in groups], world_size), strict=True))
    whole = [rank_of_group[b] for b, _ in keys]
    return dict(zip(keys, whole if busiest(whole) <= busiest(spread) else spread, strict=True))


def _cost(meta: GroupMeta, i: int, parity: float) -> float:
    if meta.masked and meta.masked[i]:
        return 0.0
    branches = meta.branch_tokens[i] if meta.branch_tokens else 0
    return _sequence_cost(meta.prompt_tokens + meta.response_tokens[i], parity) + branches


def _sequence_cost(tokens: int, parity: float) -> float:
    return tokens * (1 + tokens / parity)
