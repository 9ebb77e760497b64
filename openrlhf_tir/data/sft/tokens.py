"""Turn pieces of text, each with its author, into a row of tokens. This is the one place that makes the loss mask of
fine-tuning.

    Piece("prompt ...", "template")     its special tokens are special                  weight 0
    Piece("Let me see", "model")        what the model is to write                      weight 1, and so is its `end`
    Piece("\\n<interpreter>4", "env")    ordinary tokens only, whatever a tool printed   weight 0

Pieces are tokenised one by one, as an episode is: the model's tokens begin and end where its samples would.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import xxhash

from ...errors import ConfigError
from ...ports import Codec

Author = Literal["model", "env", "template"]


class SftRow(NamedTuple):
    """One row of tokens.

    Attributes:
        token_ids: [T] int32.
        weights: [T] float32, weights of the loss: 0.0 where the model did not write the token.
    """

    token_ids: np.ndarray
    weights: np.ndarray

    @property
    def trained(self) -> int:
        """Number of tokens that are learned. The first has no prediction."""
        return int((self.weights[1:] > 0).sum())


class RowDigest:
    """A digest of all tokens and weights of rows, in order."""

    def __init__(self) -> None:
        self._hashing = xxhash.xxh3_128()

    def add(self, row: SftRow) -> None:
        """Add the next row."""
        self._hashing.update(np.int64(len(row.token_ids)).tobytes() + row.token_ids.tobytes() + row.weights.tobytes())

    def __str__(self) -> str:
        return self._hashing.hexdigest()


def digest(rows: Iterable[SftRow]) -> str:
    """Return the RowDigest of rows."""
    made = RowDigest()
    for row in rows:
        made.add(row)
    return str(made)


class Piece(NamedTuple):
    """A piece of text with one author.

    Attributes:
        text: The text.
        author: "model", "env", or "template" for a prompt or what a chat template rendered, whose special tokens are
            meant.
        end: The special token with which the model ended; END for the tokenizer's end of text; "" if it was stopped.
        rendered: Whether a chat template rendered the model's text, so that its special tokens are meant.
    """

    text: str
    author: Author
    end: str = ""
    rendered: bool = False


END = "<end of text>"
"""Stands for the tokenizer's own end of text, whatever its name is."""


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer.

    Attributes:
        codec: Encodes text.
        specials: Text of every special token -> its id.
        eos: Id of the token that ends a text; None if there is none.
        bos: Text of the token that begins every text of a base model; "" if there is none.
    """

    codec: Codec
    specials: Mapping[str, int]
    eos: int | None
    bos: str = ""

    def ids(self, piece: Piece, *, first: bool = False) -> list[int]:
        """Return the tokens of a piece. `first` says whether it begins the sequence.

        Raises:
            ConfigError: The piece has an end, and this vocabulary has none.
        """
        ids = self._text_ids(piece, first) if piece.text else []
        if not piece.end:
            return ids
        # A token of another model's vocabulary is replaced by the token that ends a text in this one.
        end = self.specials.get(piece.end, self.eos)
        if end is None:
            raise ConfigError(
                "The rows end with an end token (sft.append_eos, or a kept trajectory), and the model's tokenizer has"
                " none, so the model would never learn to end. Name its eos_token in the tokenizer_config.json of"
                " actor.model_name_or_path; texts without an end: sft.append_eos = false."
            )
        return [*ids, end]

    def _text_ids(self, piece: Piece, first: bool) -> list[int]:
        if first and (piece.author == "template" or piece.rendered):
            return self.codec.encode_prompt(piece.text)
        if piece.author == "template" or piece.rendered:
            encode = getattr(self.codec, "encode_rendered", self.codec.encode_prompt)
            return list(encode(piece.text))
        make_inert = getattr(self.codec, "inert", None) if piece.author == "env" else None
        return self.codec.encode(make_inert(piece.text) if make_inert else piece.text)


def row_of(parts: Iterable[tuple[Sequence[int], float]]) -> SftRow:
    """Join token ids, with a weight for each part, to one row. Empty parts are skipped."""
    both = [(np.array(ids, np.int32), np.full(len(ids), weight, np.float32)) for ids, weight in parts if len(ids)]
    if not both:
        return SftRow(np.zeros(0, np.int32), np.zeros(0, np.float32))
    return SftRow(np.concatenate([ids for ids, _ in both]), np.concatenate([weights for _, weights in both]))


def tokenised(
    pieces: Iterable[Piece], vocabulary: Vocabulary, known: dict[tuple[Piece, bool], list[int]] | None = None
) -> SftRow:
    """Return the pieces as one row of tokens, with weight 1 for what the model writes.

    Args:
        pieces: The pieces.
        vocabulary: The tokenizer.
        known: Tokens of pieces, by the piece and whether it begins the sequence. New ones are added.
    """
    known = {} if known is None else known
    parts = []
    for i, piece in enumerate(pieces):
        key = (piece, i == 0)
        if key not in known:
            known[key] = vocabulary.ids(piece, first=i == 0)
        parts.append((known[key], float(piece.author == "model")))
    return row_of(parts)
