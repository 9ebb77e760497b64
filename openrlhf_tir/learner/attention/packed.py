"""Packed attention: one row holds several sequences, and each attends to itself alone.

    row [1, T] = sequence 0 | sequence 1 | ...      position ids count from 0 in each

transformers gives "sdpa" a mask [T, T] for a packed row: it computes every pair of tokens and throws those of different
sequences away. Here a row costs what its sequences cost: sum L_i^2 / 2 instead of T^2.

| device | attention of a layer |
| --- | --- |
| CUDA, bf16 or fp16 | one call of torch's varlen flash attention for the whole row; nothing depends on its lengths |
| CPU, and fp32 on CUDA | one causal call of scaled_dot_product_attention per sequence |

cuDNN's attention is never used for packed rows. It builds an execution plan of some 40 ms for every new shape, and in a
packed row nearly every sequence is one: a step of an H100 took 22 s in which the card was idle.

The name is registered with transformers when this module is imported: attn_implementation = SDPA_PACKED. transformers
makes no mask for names that it has no mask function for, so no [T, T] tensor exists. `check_packing` refuses models
with layers that only a mask could keep apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.varlen import varlen_attn
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from ...errors import ConfigError

SDPA_PACKED = "sdpa_packed"
APART = frozenset({"full_attention", "sliding_attention"})
"""The layers of transformers' `layer_types` in which position ids keep the sequences of a row apart."""
WITHOUT_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
MAX_FLASH_HEAD_SIZE = 256
"""Largest head that flash attention computes; it also has to be a multiple of 8."""


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


@dataclass(frozen=True, slots=True)
class SequenceLayout:
    """Where the sequences of one packed row begin, as host values and on the row's device."""

    lengths: tuple[int, ...]
    """Tokens of each sequence, in order."""
    boundaries: torch.Tensor
    """[sequences + 1] int32: 0, then the end of each sequence (flash attention's cu_seqlens)."""

    @classmethod
    def of_lengths(cls, lengths: list[int], device: torch.device) -> SequenceLayout:
        """Build the layout of a row whose sequences have these lengths."""
        ends = [0]
        for length in lengths:
            ends.append(ends[-1] + length)
        return cls(tuple(lengths), torch.tensor(ends, dtype=torch.int32, device=device))

    @property
    def max_length(self) -> int:
        return max(self.lengths)


_layouts = WeakTensorKeyDictionary()
"""Position ids of a row -> its SequenceLayout, for as long as the position ids live. Every layer gets the same tensor,
also when activations are recomputed, so that a row's layout is read from its device once and not once a layer."""


def layout_of(position_ids: torch.Tensor) -> SequenceLayout:
    """Return the layout of a packed row, given its position ids [1, T].

    The first call for a tensor reads it from its device (the host waits for the device there); later ones do not.
    """
    layout = _layouts.get(position_ids)
    if layout is None:
        starts = (position_ids[0] == 0).nonzero().squeeze(-1).tolist()
        ends = [*starts[1:], position_ids.shape[1]]
        lengths = [end - start for start, end in zip(starts, ends, strict=True)]
        layout = SequenceLayout.of_lengths(lengths, position_ids.device)
        _layouts[position_ids] = layout
    return layout


def set_layout(position_ids: torch.Tensor, layout: SequenceLayout) -> None:
    """Declare the layout of a row whose lengths the caller knows, so that no layer reads the device."""
    _layouts[position_ids] = layout


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
    """Compute the causal attention of one packed row (transformers' attention function).

    Args:
        query: [1, heads, T, d].
        key: [1, kv heads, T, d].
        value: [1, kv heads, T, d].
        attention_mask: Ignored; causality and `position_ids` say what a token may see.
        position_ids: [1, T], counting from 0 in each sequence.

    Returns:
        [1, T, heads, d] and no attention weights.

    Raises:
        ConfigError: The model keeps the position ids from its attention.
    """
    if position_ids is None:
        raise ConfigError(
            f"{type(module).__name__} does not tell its attention where the sequences of a packed row begin, which"
            " packing has to know. Set ds.packing_samples to false."
        )
    layout = layout_of(position_ids)
    window = kwargs.get("sliding_window")
    if _flash_can(query, value, kwargs.get("dropout", 0.0)):
        return _flash(query, key, value, layout, window, kwargs.get("scaling")), None
    sequences = zip(*(x.split(list(layout.lengths), dim=2) for x in (query, key, value)), strict=True)
    with sdpa_kernel(WITHOUT_CUDNN):
        outputs = [sdpa_attention_forward(module, q, k, v, _band(q, window), **kwargs)[0] for q, k, v in sequences]
    return torch.cat(outputs, dim=1), None


def _flash_can(query: torch.Tensor, value: torch.Tensor, dropout: float) -> bool:
    """Return True if torch's varlen flash attention computes these heads."""
    head_size = query.shape[-1]
    return (
        query.is_cuda
        and query.dtype in (torch.bfloat16, torch.float16)
        and head_size == value.shape[-1]
        and head_size <= MAX_FLASH_HEAD_SIZE
        and head_size % 8 == 0
        and not dropout
    )


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layout: SequenceLayout,
    window: int | None,
    scale: float | None,
) -> torch.Tensor:
    """Return [1, T, heads, d]: the whole row in one call. A token sees itself and up to `window` - 1 tokens before."""
    longest = layout.max_length
    output = varlen_attn(
        query.squeeze(0).transpose(0, 1),
        key.squeeze(0).transpose(0, 1),
        value.squeeze(0).transpose(0, 1),
        layout.boundaries,
        layout.boundaries,
        longest,
        longest,
        scale=scale,
        window_size=(window - 1 if window else -1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output.unsqueeze(0)


def _band(query: torch.Tensor, window: int | None) -> torch.Tensor | None:
    """[1, 1, L, L] bool of a sequence that is longer than the layer's sliding window; None where causal is all."""
    length = query.shape[2]
    if not window or length <= window:
        return None
    ones = torch.ones(length, length, dtype=torch.bool, device=query.device)
    return ones.tril().triu(1 - window)[None, None]


AttentionInterface.register(SDPA_PACKED, sdpa_packed)
