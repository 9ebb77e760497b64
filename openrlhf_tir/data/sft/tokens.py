"""Tokens: pieces of text with who wrote them -> SftRow. The one place where the loss mask of fine-tuning is made.

    Piece("prompt ...", "template")     its special tokens are special                  weight 0
    Piece("Let me see", "model")        what the model is to write                      weight 1, and so is its `end`
    Piece("\\n<interpreter>4", "env")    ordinary tokens only, whatever a tool printed   weight 0

Pieces are tokenised one by one, as an episode is: the model's tokens begin and end where its samples would."""

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
    """token_ids [T] int32; weights [T] float32, of its loss: 0 where the model did not write it."""

    token_ids: np.ndarray
    weights: np.ndarray

    @property
    def trained(self) -> int:
        return int((self.weights[1:] > 0).sum())


def digest(rows: Iterable[SftRow]) -> str:
    """The digest of all tokens and weights, in order."""
    hashing = xxhash.xxh3_128()
    for row in rows:
        hashing.update(np.int64(len(row.token_ids)).tobytes() + row.token_ids.tobytes() + row.weights.tobytes())
    return hashing.hexdigest()


class Piece(NamedTuple):
    """`author` "template": rendered by a chat template, or a prompt; its special tokens are meant. "model" and
    `rendered`: so is the model's text.

    end: the special token with which the model ended; END for the tokenizer's end of text; "" where it was stopped."""

    text: str
    author: Author
    end: str = ""
    rendered: bool = False


END = "<end of text>"
"""The tokenizer's own, whatever it is called."""


@dataclass(frozen=True)
class Vocabulary:
    """specials: text -> id of every special token; eos: the one that ends a text; bos: the text of the one that begins
    every text of a base model, "" where there is none."""

    codec: Codec
    specials: Mapping[str, int]
    eos: int | None
    bos: str = ""

    def ids(self, piece: Piece, *, first: bool = False) -> list[int]:
        """Return a piece's tokens. `first`: it begins the sequence. Raises ConfigError for an end that this vocabulary
        lacks."""
        ids = self._text_ids(piece, first) if piece.text else []
        if not piece.end:
            return ids
        end = self.specials.get(piece.end, self.eos)  # of another model's vocabulary: what ends a text in this one
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
            behind = getattr(self.codec, "encode_rendered", self.codec.encode_prompt)
            return list(behind(piece.text))
        outside = getattr(self.codec, "inert", None) if piece.author == "env" else None
        return self.codec.encode(outside(piece.text) if outside else piece.text)


def row_of(parts: Iterable[tuple[Sequence[int], float]]) -> SftRow:
    """Token ids with their weight each -> one row. Empty parts are nothing."""
    both = [(np.array(ids, np.int32), np.full(len(ids), weight, np.float32)) for ids, weight in parts if len(ids)]
    if not both:
        return SftRow(np.zeros(0, np.int32), np.zeros(0, np.float32))
    return SftRow(np.concatenate([ids for ids, _ in both]), np.concatenate([weights for _, weights in both]))


def tokenised(pieces: Iterable[Piece], vocabulary: Vocabulary) -> SftRow:
    return row_of(
        (vocabulary.ids(piece, first=i == 0), float(piece.author == "model")) for i, piece in enumerate(pieces)
    )
