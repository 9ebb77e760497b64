"""Packed attention: one row holds several sequences, and each attends to itself alone.

    row [1, T] = sequence 0 | sequence 1 | ...      position ids count from 0 in each

transformers gives "sdpa" a mask [T, T] for a packed row: it computes every pair of tokens and throws those of different
sequences away. Here a row costs what its sequences cost: sum L_i^2 / 2 instead of T^2.

| device | attention of a layer |
| --- | --- |
| CUDA, bf16 or fp16 | one call of torch's varlen flash attention for the whole row; nothing depends on its lengths |
| CPU, and fp32 on CUDA | one causal call of scaled_dot_product_attention per sequence, in fp32 |

When this module is imported, cuDNN's attention is switched off (choice.py), for rows that are not packed as well, and
the name is registered with transformers: attn_implementation = SDPA_PACKED. transformers makes no mask for names that
it has no mask function for, so no [T, T] tensor exists. `check_packing` refuses models with layers that only a mask
could keep apart.

A segment of a row need not be a whole sequence. It can continue another one, so that responses share their prompt:

    row [1, T] = prompt | response 0 | response 1 | ...     each response sees the prompt and itself

Every segment is then one causal attention in which the queries are the last tokens of the keys. Autograd adds up what
the responses' gradients say about the prompt's keys and values, so that gradients are those of separate sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import repeat_kv

from ...errors import ConfigError
from .choice import leave_out_cudnn

SDPA_PACKED = "sdpa_packed"
APART = frozenset({"full_attention", "sliding_attention"})
"""The layers of transformers' `layer_types` in which position ids keep the sequences of a row apart."""
HALF = (torch.bfloat16, torch.float16)
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
    """The segments of one packed row, as host values and on the row's device."""

    lengths: tuple[int, ...]
    """Tokens of each segment, in order."""
    continues: tuple[int, ...]
    """For each segment the index of the segment that it continues; -1 for one that starts its sequence."""
    boundaries: torch.Tensor
    """[segments + 1] int32: 0, then the end of each segment (flash attention's cu_seqlens of the queries)."""
    key_boundaries: torch.Tensor
    """The same of the keys that each segment sees: those of the segment that it continues, then its own."""
    key_index: torch.Tensor | None
    """[sum of keys] int64: the place in the row of each of these keys; None where they are the row itself."""

    @classmethod
    def of_segments(cls, lengths: Sequence[int], continues: Sequence[int], device: torch.device) -> SequenceLayout:
        """Build the layout of a row whose segments may continue others (which continue none)."""
        starts = [0, *accumulate(lengths)]
        key_ends = [0]
        keys: list[torch.Tensor] = []
        for segment, (length, continued) in enumerate(zip(lengths, continues, strict=True)):
            seen = [segment] if continued < 0 else [continued, segment]
            keys += [torch.arange(starts[i], starts[i] + lengths[i]) for i in seen]
            key_ends.append(key_ends[-1] + length + (lengths[continued] if continued >= 0 else 0))
        boundaries = torch.tensor(starts, dtype=torch.int32).to(device)
        if key_ends == starts:
            return cls(tuple(lengths), tuple(continues), boundaries, boundaries, None)
        key_boundaries = torch.tensor(key_ends, dtype=torch.int32).to(device)
        return cls(tuple(lengths), tuple(continues), boundaries, key_boundaries, torch.cat(keys).to(device))

    @property
    def max_length(self) -> int:
        return max(self.lengths)

    @property
    def max_keys(self) -> int:
        """The most keys that a segment sees."""
        pairs = zip(self.lengths, self.continues, strict=True)
        return max(length + (self.lengths[continued] if continued >= 0 else 0) for length, continued in pairs)


_layouts = WeakTensorKeyDictionary()
"""Position ids of a row -> its SequenceLayout, for as long as the position ids live. Every layer gets the same tensor,
also when activations are recomputed, so that a row's layout is read from its device once and not once a layer."""


def layout_of(position_ids: torch.Tensor) -> SequenceLayout:
    """Return the layout of a packed row, given its position ids [1, T].

    The first call for a tensor reads it from its device (the host waits for the device there); later ones do not.

    Raises:
        RuntimeError: The positions are those of segments that continue others, and nobody declared which.
    """
    layout = _layouts.get(position_ids)
    if layout is None:
        positions = position_ids[0].tolist()
        starts = [place for place, position in enumerate(positions) if position == 0]
        ends = [*starts[1:], len(positions)]
        lengths = [end - start for start, end in zip(starts, ends, strict=True)]
        if positions != [position for length in lengths for position in range(length)]:
            raise RuntimeError(
                "A packed row shares prompts, and a layer of the model got other position ids than those whose layout"
                " is declared. Set ds.share_prompts to false, and please report the model."
            )
        layout = SequenceLayout.of_segments(lengths, [-1] * len(lengths), position_ids.device)
        _layouts[position_ids] = layout
    return layout


def set_layout(position_ids: torch.Tensor, layout: SequenceLayout) -> None:
    """Declare the layout of a row whose segments the caller knows, so that no layer reads the device."""
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
    scale = kwargs.get("scaling")
    dropout = kwargs.get("dropout", 0.0)
    if _flash_can(query, value, dropout):
        return _flash(query, key, value, layout, window, scale), None
    dtype = query.dtype
    if dtype in HALF and not query.is_cuda:
        # On a CPU torch's backward pass takes 2.5 to 4.5 times as long in bf16 as in fp32; its forward pass .6 times.
        query, key, value = (x.float() for x in (query, key, value))
    elif query.is_cuda:
        # torch's kernels for fp32 on a GPU do not share a key's head between queries' heads.
        repeats = query.shape[1] // key.shape[1]
        key, value = repeat_kv(key, repeats), repeat_kv(value, repeats)
    queries, keys, values = (x.split(list(layout.lengths), dim=2) for x in (query, key, value))
    outputs = []
    for segment, continued in enumerate(layout.continues):
        q, k, v = (x[segment] for x in (queries, keys, values))
        if continued >= 0:
            k = torch.cat([keys[continued], k], dim=2)
            v = torch.cat([values[continued], v], dim=2)
        visible = _visible(q, k, window)
        output = scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=visible,
            dropout_p=dropout,
            is_causal=visible is None,
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        outputs.append(output.transpose(1, 2))
    return torch.cat(outputs, dim=1).to(dtype), None


def _flash_can(query: torch.Tensor, value: torch.Tensor, dropout: float) -> bool:
    """Return True if torch's varlen flash attention computes these heads."""
    head_size = query.shape[-1]
    return (
        query.is_cuda
        and query.dtype in HALF
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
    keys = key.squeeze(0).transpose(0, 1)
    values = value.squeeze(0).transpose(0, 1)
    if layout.key_index is not None:
        keys = keys[layout.key_index]
        values = values[layout.key_index]
    # With fewer queries than keys flash attention takes the queries for the last of the keys, which is what they are.
    output = varlen_attn(
        query.squeeze(0).transpose(0, 1),
        keys,
        values,
        layout.boundaries,
        layout.key_boundaries,
        layout.max_length,
        layout.max_keys,
        scale=scale,
        window_size=(window - 1 if window else -1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output.unsqueeze(0)


def _visible(query: torch.Tensor, key: torch.Tensor, window: int | None) -> torch.Tensor | None:
    """Return [1, 1, queries, keys] bool of the keys that each query sees, the queries being the last of the keys; None
    where plain causality says it (as many queries as keys, and no window that they are longer than)."""
    queries = query.shape[2]
    keys = key.shape[2]
    if queries == keys and not (window and keys > window):
        return None
    before = keys - queries
    visible = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(before)
    if window:
        visible = visible.triu(before + 1 - window)
    return visible[None, None]


AttentionInterface.register(SDPA_PACKED, sdpa_packed)
leave_out_cudnn()
