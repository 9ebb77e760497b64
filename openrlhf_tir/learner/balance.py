"""Decide which learner rank trains which trajectory, from the metadata of the batch. No torch: the controller runs it.

The rule is longest processing time first: the costliest sequence goes to the rank with the least work so far. The
busiest rank then exceeds the average by at most one sequence, the last one placed. That matters because a ZeRO-3 step
takes as long as its busiest rank.

    cost(L) = L + L^2 / parity

is the work for a sequence of L tokens, in units of the work for one token without attention. `parity` is the length at
which attention costs as much as everything else (model_size.attention_parity).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from ..types import GroupMeta


def lpt(costs: Sequence[float], bins: int) -> list[int]:
    """Distribute items over bins by longest processing time first, and return the bin of each item.

    The result is deterministic: equal costs keep their order, and among equally full bins the lowest is filled first.
    """
    loads = [(0.0, b) for b in range(bins)]
    bin_of = [0] * len(costs)
    for item in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        load, emptiest = heapq.heappop(loads)
        bin_of[item] = emptiest
        heapq.heappush(loads, (load + costs[item], emptiest))
    return bin_of


def assign_ranks(
    metas: Sequence[GroupMeta],
    world_size: int,
    samples: Sequence[tuple[int, int]] | None = None,
    parity: float = math.inf,
    *,
    share_prompts: bool = False,
) -> dict[tuple[int, int], int]:
    """Assign every valid trajectory of a batch to a rank, balanced by the cost of its prompt, response and branches.

    Masked trajectories cost nothing, because they are not trained.

    Args:
        metas: Metadata of the batch's groups.
        world_size: Number of ranks; with sequence parallelism, of sequence-parallel groups.
        samples: The trajectories to assign, as pairs (b, i): the i-th valid trajectory of group b. Default: all.
        parity: See the module's docstring. Infinite: the cost is the number of tokens.
        share_prompts: A rank computes a prompt once for all of its responses. A group then stays on one rank if that
            makes the busiest rank less busy than distributing its trajectories.

    Returns:
        The rank of each (b, i).
    """
    if samples is None:
        keys = [(b, i) for b, meta in enumerate(metas) for i in range(len(meta.response_tokens))]
    else:
        keys = list(samples)
    costs = [_cost(metas[b], i, parity) for b, i in keys]
    distributed = lpt(costs, world_size)
    if not share_prompts or world_size == 1:
        return dict(zip(keys, distributed, strict=True))
    prompt_costs = [_sequence_cost(meta.prompt_tokens, parity) for meta in metas]

    def shared_costs(owners: Sequence[int]) -> dict[tuple[int, int], float]:
        """Return the cost of each (group, owner): one prompt, and the responses of that group that the owner trains."""
        total: dict[tuple[int, int], float] = {}
        for (b, _), owner, cost in zip(keys, owners, costs, strict=True):
            if cost:
                total[b, owner] = total.get((b, owner), prompt_costs[b]) + cost - prompt_costs[b]
        return total

    def busiest(ranks: Sequence[int]) -> float:
        """Return the load of the busiest rank if the keys go to these ranks."""
        loads = [0.0] * world_size
        for (_, rank), cost in shared_costs(ranks).items():
            loads[rank] += cost
        return max(loads)

    group_costs = shared_costs([0] * len(keys))
    groups = sorted({b for b, _ in keys})
    rank_of_group = dict(zip(groups, lpt([group_costs.get((b, 0), 0.0) for b in groups], world_size), strict=True))
    undivided = [rank_of_group[b] for b, _ in keys]
    chosen = undivided if busiest(undivided) <= busiest(distributed) else distributed
    return dict(zip(keys, chosen, strict=True))


def _cost(meta: GroupMeta, i: int, parity: float) -> float:
    """Return the cost of the i-th valid trajectory of a group; 0 if it is masked."""
    if meta.masked and meta.masked[i]:
        return 0.0
    branches = meta.branch_tokens[i] if meta.branch_tokens else 0
    return _sequence_cost(meta.prompt_tokens + meta.response_tokens[i], parity) + branches


def _sequence_cost(tokens: int, parity: float) -> float:
    return tokens * (1 + tokens / parity)
