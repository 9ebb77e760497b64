"""Put rows of unequal length into micro batches of tensors. No row is dropped.

L is the number of tokens of a row (prompt + response), b the number of rows of a micro batch. Per-token fields are
[L-1]: entry t belongs to token t+1, whose log-prob the model computes at position t. RL, fine-tuning and scoring use
the same layout.

A packed micro batch can compute a prompt that several of its rows begin with once (`PackedTokens`). The responses of a
group of eight then cost one prompt instead of eight, forwards and backwards, and every number stays what it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import torch

OWN_EXPERTS = -1
"""In place of experts: the model's own router chooses."""
DUMMY_TOKENS = 2
"""Length of the row that stands in for an empty micro batch: the shortest that predicts a token."""


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence of L tokens."""

    token_ids: np.ndarray
    """[L] int."""
    fields: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Values per predicted token by name, [L-1] each; 0 (False) on the prompt."""
    prompt_tokens: int = 0
    """Number of leading tokens that are the prompt. Their log-probs are not needed, so that rows with the same prompt
    can share its computation. 0 if the log-probs of every token are needed."""
    experts: np.ndarray | None = None
    """[tokens, layers, k] uint8 or uint16: the experts that compute each token. Those beyond L are left out. The router
    of the model chooses those of the tokens that are missing at the end. None: of all tokens."""

    @property
    def sharable_tokens(self) -> int:
        """Number of leading tokens that rows with the same prompt can share.

        The prompt's last token is not one of them: the model predicts a different first response token there for each
        row, and a position of the packed row has one target.
        """
        return max(0, self.prompt_tokens - 1)


@dataclass(frozen=True, slots=True)
class PackedTokens:
    """The one long row of T tokens that a packed micro batch is computed as.

    It consists of segments. A segment is a whole sequence, the prompt that several sequences begin with, or the
    rest of such a sequence. Rows p q r a b and p q r c, whose sharable tokens are p q, and d e become

        tokens     p q | r a b | r c | d e        positions  0 1 | 2 3 4 | 2 3 | 0 1
        lengths      2 ,   3   ,  2  ,  2         continues   -1 ,   0   ,  0  ,  -1
    """

    source: torch.Tensor
    """[T] int64: index of each token in the flattened `MicroBatch.sequences` [b * L]. No index occurs twice."""
    positions: torch.Tensor
    """[1, T] int64: position of each token in its own sequence."""
    lengths: tuple[int, ...]
    """Tokens of each segment; they add up to T."""
    continues: tuple[int, ...]
    """For each segment the index of the segment that it continues; -1 for a segment that starts at position 0."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The tensors of some rows, padded on the right with 0 to the longest of them, L tokens."""

    sequences: torch.Tensor
    """[b, L] int64: the token ids."""
    attention_mask: torch.Tensor
    """[b, L] int64: 1 on tokens, 0 on padding."""
    fields: dict[str, torch.Tensor]
    """[b, L-1] each, by name."""
    packed: PackedTokens | None = None
    """The row as which the policy computes them with ds.packing_samples; None without."""
    experts: torch.Tensor | None = None
    """[b, L, layers, k] int16: the experts that compute each token, `OWN_EXPERTS` where the router of the model chooses
    them. None: it chooses all."""


def plan_padded(lengths: Sequence[int], *, max_rows: int, max_tokens: int) -> list[list[int]]:
    """Return the indices of the rows of each micro batch whose rows are padded to the longest of them.

    The longest rows come first: rows of similar length share a micro batch, which saves padding, and memory peaks in
    the first one, so that a run that is too large fails early.

    Args:
        lengths: Tokens of each row.
        max_rows: Most rows of a micro batch.
        max_tokens: Most tokens of a micro batch, padding included. A row that is longer is alone.
    """
    batches: list[list[int]] = []
    for i in _longest_first(lengths):
        if batches and len(batches[-1]) < max_rows:
            padded_length = lengths[batches[-1][0]]
            if padded_length * (len(batches[-1]) + 1) <= max_tokens:
                batches[-1].append(i)
                continue
        batches.append([i])
    return batches


def first_fit(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Return the indices of each bin by first fit decreasing: at most 11/9 of the fewest possible bins.

    Here too the longest come first, so that memory peaks in the first micro batch.

    An item larger than `capacity` has a bin of its own.
    """
    bins: list[list[int]] = []
    used: list[int] = []
    for i in _longest_first(sizes):
        place = next((b for b, total in enumerate(used) if total + sizes[i] <= capacity), None)
        if place is None:
            bins.append([i])
            used.append(sizes[i])
        else:
            bins[place].append(i)
            used[place] += sizes[i]
    return bins


def plan_packed(rows: Sequence[Row], *, max_tokens: int, share_prompts: bool) -> list[list[int]]:
    """Return the rows of each packed micro batch, which is one long row without padding, however many are in it.

    Rows that share a prompt are put into one micro batch, where they fit; where they do not, each micro batch computes
    the prompt anew. A micro batch computes at most `max_tokens` tokens, unless one row alone has more.
    """
    parts: list[list[int]] = []  # rows that share a prompt and stay together
    sizes: list[int] = []
    for group in _by_prompt(rows, share_prompts):
        rests = [len(rows[i].token_ids) - group.shared for i in group.rows]
        for members in first_fit(rests, max(1, max_tokens - group.shared)):
            parts.append([group.rows[j] for j in members])
            sizes.append(group.shared + sum(rests[j] for j in members))
    planned = []
    for chosen_parts in first_fit(sizes, max_tokens):
        planned.append([i for part in chosen_parts for i in parts[part]])
    return planned


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))


class _PromptGroup(NamedTuple):
    """Rows that begin with the same prompt.

    Attributes:
        rows: Their indices.
        shared: Leading tokens that are computed once for all of them; 0 for a row that is alone.
    """

    rows: list[int]
    shared: int


def _by_prompt(rows: Sequence[Row], share_prompts: bool) -> list[_PromptGroup]:
    """Return the rows grouped by equal sharable tokens; a row without any is alone, as all are without sharing."""
    groups: dict[object, list[int]] = {}
    for i, row in enumerate(rows):
        shared = row.sharable_tokens if share_prompts else 0
        key: object = (shared, np.asarray(row.token_ids[:shared], np.int64).tobytes()) if shared else i
        groups.setdefault(key, []).append(i)
    return [_PromptGroup(same, rows[same[0]].sharable_tokens if len(same) > 1 else 0) for same in groups.values()]


def _packed_tokens(rows: Sequence[Row], width: int, device: str, share_prompts: bool) -> PackedTokens:
    """Lay out the rows of a micro batch whose sequences are padded to `width` tokens."""
    import torch

    source: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    continues: list[int] = []

    def add_segment(row: int, start: int, stop: int, continued: int) -> None:
        in_sequence = np.arange(start, stop)
        source.append(row * width + in_sequence)
        positions.append(in_sequence)
        continues.append(continued)

    for group in _by_prompt(rows, share_prompts):
        prompt_segment = -1
        if group.shared:
            prompt_segment = len(source)
            add_segment(group.rows[0], 0, group.shared, -1)
        for i in group.rows:
            add_segment(i, group.shared, len(rows[i].token_ids), prompt_segment)
    return PackedTokens(
        torch.from_numpy(np.concatenate(source)).to(device),
        torch.from_numpy(np.concatenate(positions))[None].to(device),
        tuple(len(segment) for segment in source),
        tuple(continues),
    )


def collate(
    rows: Sequence[Row], names: Mapping[str, type], device: str, *, packed: bool = False, share_prompts: bool = False
) -> MicroBatch:
    """Build the micro batch of some rows.

    Without rows it has a dummy row of zeros, which is not trained because its fields are 0. Every rank must run the
    same number of forward and backward passes, because ZeRO-3 gathers weights collectively in each.

    Args:
        rows: The rows.
        names: The fields to include, with their numpy types.
        device: The device of the tensors.
        packed: Lay the rows out as one row, `MicroBatch.packed`.
        share_prompts: A prompt that several rows begin with is in that row once.
    """
    import torch

    rows = rows or [Row(np.zeros(DUMMY_TOKENS, np.int64), {name: np.zeros(DUMMY_TOKENS - 1) for name in names})]
    shape = (len(rows), max(len(row.token_ids) for row in rows))
    sequences = np.zeros(shape, np.int64)
    attention = np.zeros(shape, np.int64)
    fields: dict[str, np.ndarray] = {name: np.zeros((shape[0], shape[1] - 1), dtype) for name, dtype in names.items()}
    for place, row in enumerate(rows):
        length = len(row.token_ids)
        sequences[place, :length] = row.token_ids
        attention[place, :length] = 1
        for name in names:
            fields[name][place, : length - 1] = row.fields[name]
    return MicroBatch(
        torch.from_numpy(sequences).to(device),
        torch.from_numpy(attention).to(device),
        {name: torch.from_numpy(array).to(device) for name, array in fields.items()},
        _packed_tokens(rows, shape[1], device, share_prompts) if packed else None,
        _experts(rows, shape[1], device),
    )


def _experts(rows: Sequence[Row], width: int, device: str) -> torch.Tensor | None:
    """Return the experts of a micro batch whose sequences are padded to `width` tokens; None if no row has any."""
    import torch

    shape = next((row.experts.shape[1:] for row in rows if row.experts is not None), None)
    if shape is None:
        return None
    experts = np.full((len(rows), width, *shape), OWN_EXPERTS, np.int16)
    for place, row in enumerate(rows):
        if row.experts is not None:
            known = row.experts[: len(row.token_ids)]
            experts[place, : len(known)] = known
    return torch.from_numpy(experts).to(device)
