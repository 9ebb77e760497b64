"""Show: the environment's words -> text and tokens behind what was sampled. As text; as chat messages: chat_show.py."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from ..engines.codec import REPLACEMENT
from ..ports import Codec
from ..types import Completion
from .turns import TurnProtocol

MAX_CHARS_PER_TOKEN = 256
"""No vocabulary has a longer token: what has more characters than this allows is too long, without being tokenised."""


class Shown(NamedTuple):
    """Text of the environment, and its tokens."""

    text: str
    ids: list[int]


class Show(Protocol):
    """One per episode."""

    def first(self, prompt_ids: list[int], observation: str) -> tuple[list[int], Shown]:
        """What is known before anything is sampled: the prompt, and what is shown behind it."""

    def read(self, completion: Completion) -> Completion:
        """What was just sampled, as the protocol reads it."""

    def next(self, observation: str) -> Shown:
        """An observation, and that the model goes on."""

    def last(self, observation: str) -> Shown:
        """An observation, and nothing behind it: the environment ended the episode."""

    def go_on(self, text: str) -> Shown:
        """The protocol's own text."""


class TextShow:
    """An observation is a block of text, as the turn protocol writes it."""

    def __init__(self, protocol: TurnProtocol, codec: Codec, max_tokens: int) -> None:
        """`max_tokens` of one inserted block."""
        self.protocol, self.codec, self.max_tokens = protocol, codec, max_tokens

    def first(self, prompt_ids: list[int], observation: str) -> tuple[list[int], Shown]:
        return prompt_ids, self.go_on(observation)

    def read(self, completion: Completion) -> Completion:
        return completion

    def next(self, observation: str) -> Shown:
        block = self.last(observation)
        after = self.protocol.after_insertion()
        return self.go_on(block.text + after) if after else block

    def last(self, observation: str) -> Shown:
        block = self.protocol.insertion(observation)
        if (fitting := self._fits(block)) is not None:
            return fitting
        message = self.protocol.too_long()
        if message is None:
            room = max(0, self.max_tokens - len(self.codec.encode(self.protocol.insertion(""))))
            message = cut(observation, room, self.max_tokens, self.codec)
        return self.go_on(self.protocol.insertion(message))

    def go_on(self, text: str) -> Shown:
        return Shown(text, self.codec.encode(text) if text else [])

    def _fits(self, block: str) -> Shown | None:
        if len(block) > MAX_CHARS_PER_TOKEN * self.max_tokens:
            return None
        ids = self.codec.encode(block)
        return Shown(block, ids) if len(ids) <= self.max_tokens else None


def cut(text: str, room: int, max_tokens: int, codec: Codec) -> str:
    """The first `room` tokens of a text, in characters. A cut may be inside of a character, which is then left out."""
    return codec.decode(codec.encode(text[: MAX_CHARS_PER_TOKEN * max_tokens])[:room]).rstrip(REPLACEMENT)
