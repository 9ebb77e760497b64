"""Packing: rows of unequal length -> micro batches of tensors. No row is dropped, and every rank gets the same number.

L tokens of a row (prompt + response), b rows of a micro batch. Per-token fields are [L-1]: entry t belongs to token
t+1, whose log-prob the model gives at position t. The layout serves RL, fine-tuning and scoring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

DUMMY_TOKENS = 2
"""Length of the row that stands in for an empty micro batch: the shortest that predicts a token."""


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence. token_ids [L] int; fields: name -> [L-1], padded with 0 (False)."""

    token_ids: np.ndarray
    fields: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """sequences, attention_mask [b, L] int64, padded on the right with 0; fields: name -> [b, L-1]."""

    sequences: torch.Tensor
    attention_mask: torch.Tensor
    fields: dict[str, torch.Tensor]


def plan(lengths: Sequence[int], *, max_rows: int, max_tokens: int, packed: bool = False) -> list[list[int]]:
    """Indices per micro batch, longest first: rows of like length share a batch (little padding), and memory peaks at
    once.

    A micro batch holds at most max_tokens tokens; a row longer than that is alone. Padding counts as tokens, and there
    are at most max_rows rows. `packed` rows make one long one, without padding and however many they are: each goes
    into the first micro batch that has room (first fit decreasing, at most 11/9 of the fewest possible).
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    batches: list[list[int]] = []
    used: list[int] = []
    for i in order:
        if packed:
            place = next((b for b, tokens in enumerate(used) if tokens + lengths[i] <= max_tokens), None)
            cost = lengths[i]
        else:
            cost = lengths[batches[-1][0]] if batches else 0
            place = (
                len(batches) - 1 if batches and len(batches[-1]) < max_rows and used[-1] + cost <= max_tokens else None
            )
        if place is None:
            batches.append([i])
            used.append(lengths[i])
        else:
            batches[place].append(i)
            used[place] += cost
    return batches


def collate(rows: Sequence[Row], names: Mapping[str, type], device: str) -> MicroBatch:
    """Stack `rows`; `names` gives the fields and their numpy types. No rows: one dummy row of zeros, which no mask
    trains.

    Every rank must run the same number of forward and backward passes, because ZeRO-3 gathers weights collectively in
    each."""
    import torch

    width = max((len(row.token_ids) for row in rows), default=DUMMY_TOKENS)
    height = max(1, len(rows))
    sequences = np.zeros((height, width), np.int64)
    attention = np.zeros((height, width), np.int64)
    fields: dict[str, np.ndarray] = {name: np.zeros((height, width - 1), dtype) for name, dtype in names.items()}
    if not rows:
        attention[:] = 1
    for k, row in enumerate(rows):
        length = len(row.token_ids)
        sequences[k, :length] = row.token_ids
        attention[k, :length] = 1
        for name in names:
            fields[name][k, : length - 1] = row.fields[name]
    return MicroBatch(
        torch.from_numpy(sequences).to(device),
        torch.from_numpy(attention).to(device),
        {name: torch.from_numpy(array).to(device) for name, array in fields.items()},
    )
