"""Packed attention: torch's own kernels on rows that hold several sequences, each seeing itself alone.

transformers gives "sdpa" a mask [T, T] of a packed row: every pair of its tokens is computed and those of different sequences thrown away. Here
each sequence is a call of its own, causal and without a mask, so that a row costs what its sequences cost: sum L_i^2 / 2 instead of T^2. Where
sequences begin is read from the position ids, as transformers itself does for flash attention.

The name is registered with transformers when this module is imported: attn_implementation = SDPA_PACKED. Models that it has no mask function for
get none made, so no [T, T] exists.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

SDPA_PACKED = "sdpa_packed"


def lengths(position_ids: torch.Tensor) -> list[int]:
    """Tokens of each sequence of a packed row. position_ids [1, T] count from 0 in each."""
    starts = (position_ids[0] == 0).nonzero().squeeze(-1).tolist()
    return [end - start for start, end in zip(starts, [*starts[1:], position_ids.shape[1]], strict=True)]


def sdpa_packed(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    position_ids: torch.Tensor,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function: query [1, heads, T, d], key and value [1, kv heads, T, d] -> [1, T, heads, d]."""
    window = kwargs.get("sliding_window")
    each = zip(*(x.split(lengths(position_ids), dim=2) for x in (query, key, value)), strict=True)
    return torch.cat([sdpa_attention_forward(module, q, k, v, _band(q, window), **kwargs)[0] for q, k, v in each], dim=1), None


def _band(query: torch.Tensor, window: int | None) -> torch.Tensor | None:
    """[1, 1, L, L] bool of a sequence that is longer than the layer's sliding window; None where causal is all."""
    length = query.shape[2]
    if not window or length <= window:
        return None
    ones = torch.ones(length, length, dtype=torch.bool, device=query.device)
    return ones.tril().triu(1 - window)[None, None]


AttentionInterface.register(SDPA_PACKED, sdpa_packed)
