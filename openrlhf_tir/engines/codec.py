"""Convert text to token ids and back with a Hugging Face tokenizer, also for text that comes from outside.

    encode            text behind other text: ordinary tokens only, whatever a tool printed
    encode_rendered   what a chat template wrote behind other text: its special tokens are meant
    encode_prompt     the same at the start of a sequence

A tool that prints "<|im_end|>" must not end the turn: `encode` turns such text into ordinary tokens and never yields a
special id. In a prompt that a chat template rendered, text from outside has marks (inert.py): there its pieces are
ordinary, and the special tokens that the template wrote are special.

Tokenizers of Llama 2's kind put a blank before whatever they are given. Text that continues a sequence gets none.
`decode` leaves special tokens out, like the engines' text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from ..data.chat_template import added_texts, special_texts
from ..errors import ConfigError
from ..inert import MARK, marked

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

REPLACEMENT = "\ufffd"
"""What an incomplete multi-byte character decodes to."""
ANCHORS = ("\n", ".", "|", "a")
"""Text that stands before a continuation while it is tokenised, so that a tokenizer's blank goes there."""


class HfCodec:
    """Implements ports.Codec on a Hugging Face tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Create a codec.

        Raises:
            ConfigError: The tokenizer has a special token that ordinary text can produce, whatever is done about it.
        """
        self.tokenizer = tokenizer
        self._rust = rust_of(tokenizer)
        texts = special_texts(tokenizer)
        self._specials = texts
        self.special_ids = frozenset(tokenizer.convert_tokens_to_ids(texts))
        self._special = re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True)))) if texts else None
        self._added = [text for text in added_texts(tokenizer) if text not in texts]
        self._meant_ids = self.special_ids | set(tokenizer.convert_tokens_to_ids(self._added))
        self._blank = self._puts_blank()
        self._native = not self._leaks(texts, native=True)
        if not self._native and (leaking := self._leaks(texts, native=False)):
            raise ConfigError(
                f"Tokenizer {tokenizer.name_or_path!r} turns the text of its special tokens {leaking} into special ids."
                " Use a fast tokenizer."
            )

    @cached_property
    def max_chars_per_token(self) -> int:
        """Characters of the longest token. A text of n characters has at least n divided by this tokens."""
        return max(map(len, self.tokenizer.get_vocab()))

    def encode(self, text: str) -> list[int]:
        """Return the ordinary tokens of text that follows other text; nothing is added in front or behind."""
        return [i for piece in text.split(MARK) if piece for i in self._encode(piece, native=self._native)]

    def encode_rendered(self, text: str) -> list[int]:
        """Return the tokens of what a chat template wrote behind other text; its special tokens are special."""
        return [i for piece in text.split(MARK) if piece for i in self._continued(piece, split=False)]

    def encode_prompt(self, text: str) -> list[int]:
        """Return the tokens of a rendered prompt: the special tokens of the template are special, nothing is added."""
        first, *others = text.split(MARK)
        return [*self._ids(first, split=False), *(i for piece in others for i in self.encode_rendered(piece))]

    def inert(self, text: str) -> str:
        """Return a tool's text with marks inside of all that would be an added token, special or not.

        A tool that prints "<tool_call>" must not write the token that the model begins its calls with.
        """
        return marked(text, [*self._specials, *self._added])

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, without special tokens."""
        return self.tokenizer.decode(
            [int(i) for i in token_ids], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def spell(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, special tokens included, as OpenRLHF gives it to its rewards."""
        return self.tokenizer.decode(
            [int(i) for i in token_ids], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    def spell_inert(self, token_ids: Sequence[int]) -> str:
        """Return the same, with marks where ordinary tokens spell a special or an added token.

        `encode_rendered` makes the special tokens of it that were there, and no others.
        """
        parts = []
        anchor = self._ids("a", split=False) if self._blank else []
        for meant, group in groupby(map(int, token_ids), key=self._meant_ids.__contains__):
            text = self.spell([*anchor, *group])[len(self.spell(anchor)) :]
            parts.append(text if meant else self.inert(text))
        return "".join(parts)

    def special(self, token_id: int) -> str:
        """Return the text of a special token, and "" for an ordinary one."""
        return self.spell([token_id]) if token_id in self.special_ids else ""

    def _encode(self, text: str, *, native: bool) -> list[int]:
        if native or self._special is None:
            return self._continued(text, split=native)
        # Cut every special token's text after its first character and tokenise the pieces by themselves.
        cuts = [0, *(m.start() + 1 for m in self._special.finditer(text)), len(text)]
        pieces = [text[a:b] for a, b in pairwise(cuts)]
        return [i for piece in pieces if piece for i in self._continued(piece, split=False)]

    def _continued(self, text: str, *, split: bool) -> list[int]:
        """Return the ids of text that follows other text."""
        if not self._blank or not text:
            return self._ids(text, split=split)
        for anchor in ANCHORS:
            before = self._ids(anchor, split=split)
            ids = self._ids(anchor + text, split=split)
            if ids[: len(before)] == before:
                return ids[len(before) :]
        return self._ids(text, split=split)

    def _puts_blank(self) -> bool:
        """Return True if the tokenizer puts a blank before every text that it is given."""
        ids = self._ids("x", split=False)
        return self.decode([*ids, *ids]) == "x x"

    def _ids(self, text: str, *, split: bool) -> list[int]:
        """Return the ids of a text. With `split` the text of a special token becomes ordinary tokens."""
        rust = self._rust
        if rust is None:
            options = {"split_special_tokens": True} if split else {}
            return self.tokenizer.encode(text, add_special_tokens=False, **options)
        if rust.truncation is not None:
            rust.no_truncation()
        if rust.padding is not None:
            rust.no_padding()
        if rust.encode_special_tokens != split:
            rust.encode_special_tokens = split
        (encoding,) = rust.encode_batch_fast([text], add_special_tokens=False)
        return encoding.ids

    def _leaks(self, texts: Sequence[str], *, native: bool) -> list[str]:
        """Return the texts of special tokens that become special ids within other text."""
        return [t for t in texts if self.special_ids.intersection(self._encode(f"a{t}b", native=native))]


def rust_of(tokenizer: PreTrainedTokenizerBase) -> Tokenizer | None:
    """Return the Rust tokenizer that does the work, if `encode` is transformers' own method; otherwise None.

    Called directly, and for ids alone, it takes half the time. The caller must set what transformers sets in it before
    each call.
    """
    from transformers import PreTrainedTokenizerFast

    own = all(
        getattr(type(tokenizer), name, None) is getattr(PreTrainedTokenizerFast, name)
        for name in ("encode", "_encode_plus", "set_truncation_and_padding")
    )
    # A tokenizer that splits special tokens by its own settings does so in every call.
    return tokenizer.backend_tokenizer if own and not tokenizer.split_special_tokens else None


def text_of(codec: HfCodec, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> str:
    """Return the text of sampled tokens as an engine writes it that decodes them one by one."""
    decoder = IncrementalDecoder(codec, prompt_ids)
    return "".join(decoder.push(token) for token in token_ids)


def find_stop(text: str, known: int, stops: Sequence[str]) -> tuple[str, int] | None:
    """Return the first of the stop strings that the text contains, and where it ends; None if it contains none.

    Args:
        text: The text.
        known: Characters at its beginning in which no stop string ends.
        stops: The stop strings, in the order of their precedence.
    """
    for stop in stops:
        at = text.find(stop, max(0, known - len(stop) + 1))
        if at >= 0:
            return stop, at + len(stop)
    return None


class IncrementalDecoder:
    """Decodes tokens one at a time. A character that is split over several tokens comes out with the last of them.

    It decodes a window that starts at the last complete text, because a token's text may depend on the token before
    it (spaces).
    """

    def __init__(self, codec: HfCodec, prompt_ids: Sequence[int] = ()) -> None:
        self._codec = codec
        self._window = list(prompt_ids[-4:])
        self._decoded = codec.decode(self._window)
        """Text of the window."""

    def push(self, token_id: int) -> str:
        """Add a token and return the text that it completes."""
        self._window.append(token_id)
        text = self._codec.decode(self._window)
        if text.endswith(REPLACEMENT):
            return ""
        new = text[len(self._decoded) :]
        if new:
            self._window = self._window[-1:]
            self._decoded = self._codec.decode(self._window)
        return new
