"""Packed attention: torch's own kernels on rows that hold several sequences, each seeing itself alone.

transformers gives "sdpa" a mask [T, T] of a packed row: every pair of its tokens is computed and those of different
sequences thrown away. Here each sequence is a call of its own, causal and without a mask, so that a row costs what its
sequences cost: sum L_i^2 / 2 instead of T^2. Where sequences begin is read from the position ids, as transformers
itself does for flash attention.

The name is registered with transformers when this module is imported: attn_implementation = SDPA_PACKED. Models that it
has no mask function for get none made, so no [T, T] exists. What a mask alone would say is not seen here:
`check_packing` refuses models that have such layers."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from ...errors import ConfigError

SDPA_PACKED = "sdpa_packed"
APART = frozenset({"full_attention", "sliding_attention"})
"""The layers of transformers' `layer_types` in which position ids keep the sequences of a row apart."""


def check_packing(model: Any) -> None:
    """Raises ConfigError for a transformers model in whose rows the sequences would see each other, whatever computes
    its attention.

    Linear attention, Mamba and short convolutions carry a state from token to token along the row; other kinds choose
    tokens from all of it."""
    others = sorted(set(getattr(model.config.get_text_config(), "layer_types", None) or ()) - APART)
    if others or model._is_stateful:
        kinds = ", ".join(others) or "layers with a state"
        raise ConfigError(
            f"{type(model).__name__} has {kinds}: with ds.packing_samples a row holds several sequences, and they would"
            " see each other there. Set ds.packing_samples to false."
        )


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
    position_ids: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function: query [1, heads, T, d], key and value [1, kv heads, T, d] -> [1, T, heads, d].

    Raises ConfigError for a model that keeps the position ids from its attention.
    """
    if position_ids is None:
        raise ConfigError(
            f"{type(module).__name__} does not tell its attention where the sequences of a packed row begin, which"
            " packing has to know. Set ds.packing_samples to false."
        )
    window = kwargs.get("sliding_window")
    each = zip(*(x.split(lengths(position_ids), dim=2) for x in (query, key, value)), strict=True)
    return (
        torch.cat([sdpa_attention_forward(module, q, k, v, _band(q, window), **kwargs)[0] for q, k, v in each], dim=1),
        None,
    )


def _band(query: torch.Tensor, window: int | None) -> torch.Tensor | None:
    """[1, 1, L, L] bool of a sequence that is longer than the layer's sliding window; None where causal is all."""
    length = query.shape[2]
    if not window or length <= window:
        return None
    ones = torch.ones(length, length, dtype=torch.bool, device=query.device)
    return ones.tril().triu(1 - window)[None, None]


AttentionInterface.register(SDPA_PACKED, sdpa_packed)
