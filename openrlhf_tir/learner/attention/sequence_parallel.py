"""Sequence parallelism (DeepSpeed's Ulysses, arXiv 2309.14509): the ranks of a group hold a slice each of every packed
row, so that rows fit which no rank could hold. Between slices only attention looks back; there an all-to-all turns
slices of the tokens into slices of the heads, and another back.

    row [1, T], T = n S --slice--> [1, S] on each of n ranks
       -> layers on S tokens; attention on n S tokens and 1/n of the heads
       -> log-probs and entropies [1, S] (linear_head.py) --gather--> [1, T] on every rank, which computes the whole
       loss

Every rank of a group computes the same loss, and its gradient flows into its own slice alone: the gather's backward
keeps that slice and adds up nothing. A weight's gradient on a rank is then what its slice gives; over the group they
add up to that of the row. So ZeRO's average over all ranks, scaled as ever by their number
(algorithms/global_counts.py), is the gradient of the batch.

What ranks add up otherwise (token counts, diagnostics) counts a row once, on the first rank of a group: `once`."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
from transformers import AttentionInterface

from ...config.sections.sequence_parallel import heads_fault
from ...errors import ConfigError
from .packed import sdpa_packed

ULYSSES = "sdpa_packed_ulysses"
"""The attention that `SequenceParallel` registers with transformers."""


def check_heads(model: Any, size: int) -> None:
    """Raises ConfigError where `size` ranks cannot share the attention of that transformers configuration."""
    heads = model.num_attention_heads
    if fault := heads_fault(size, heads, getattr(model, "num_key_value_heads", None) or heads):
        raise ConfigError(fault)


class SequenceParallel:
    """A group of `size` ranks; without one (size 1) nothing is cut."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.size = dist.get_world_size(group) if group else 1
        self.rank = dist.get_rank(group) if group else 0
        if group:
            AttentionInterface.register(ULYSSES, _Ulysses(group))

    def once(self, local: torch.Tensor) -> torch.Tensor:
        """Return `local` on the group's first rank and zeros on its others, to be added up over all ranks."""
        return local if self.rank == 0 else torch.zeros_like(local)

    def slice(self, row: torch.Tensor) -> torch.Tensor:
        """Return this rank's slice [1, S, ...] of what belongs to the tokens of a row, [1, T, ...]."""
        return row.chunk(self.size, dim=1)[self.rank]

    def gather(self, mine: torch.Tensor) -> torch.Tensor:
        """Return the row [1, T] on every rank, given each rank's slice [1, S]. The gradient is that of `mine` alone."""
        return mine if self.size == 1 else _Gather.apply(mine, self.group)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mine: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.rank, ctx.size = dist.get_rank(group), dist.get_world_size(group)
        parts = [torch.empty_like(mine) for _ in range(ctx.size)]
        dist.all_gather(parts, mine.contiguous(), group=group)
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx: Any, whole: torch.Tensor) -> tuple[torch.Tensor, None]:
        return whole.chunk(ctx.size, dim=1)[ctx.rank], None


class _Ulysses:
    """transformers' attention function: DeepSpeed's exchange around packed attention. One exchange for each shape of
    heads, made when it is first seen.

    DeepSpeed's own wrapper of "sdpa" is causal over the whole row: packed sequences would see each other.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.made: dict[tuple[int, int, int], UlyssesSPAttentionHF] = {}

    def __call__(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: Any,
        **kwargs: Any,
    ) -> tuple:
        shape = query.shape[1], key.shape[1], query.shape[3]
        if shape not in self.made:
            heads, kv_heads, width = shape
            self.made[shape] = UlyssesSPAttentionHF(
                attn=sdpa_packed,
                batch_size=1,
                attn_head_count=heads,
                attn_head_size=width,
                kv_head_count=kv_heads,
                num_hidden_layers=0,  # read by its debug mode only
                process_group=self.group,
                seq_length_is_variable=True,
            )
        return self.made[shape](module, query, key, value, None, **kwargs)
