"""Show: the environment's words -> text and tokens behind what was sampled. As text; as chat messages: chat_show.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from ..engines.codec import REPLACEMENT
from ..inert import plain
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
        return prompt_ids, self.go_on(self._inert(observation))

    def read(self, completion: Completion) -> Completion:
        return completion

    def next(self, observation: str) -> Shown:
        return self._shown(observation, self.protocol.after_insertion)

    def last(self, observation: str) -> Shown:
        return self._shown(observation, lambda: "")

    def _shown(self, observation: str, after: Callable[[], str]) -> Shown:
        block, ids = self._block(observation)
        behind = after()
        return Shown(plain(block), ids) if ids is not None and not behind else self.go_on(block + behind)

    def _block(self, observation: str) -> tuple[str, list[int] | None]:
        """Return the inserted block, short enough, with the observation's marks in it; its tokens if they are known."""
        block = self.protocol.insertion(self._inert(observation))
        if (ids := self._fitting(block)) is not None:
            return block, ids
        message = self.protocol.too_long()
        if message is None:
            room = max(0, self.max_tokens - len(self.codec.encode(self.protocol.insertion(""))))
            message = self._inert(cut(observation, room, self.max_tokens, self.codec))
        return self.protocol.insertion(message), None

    def go_on(self, text: str) -> Shown:
        return Shown(plain(text), self.codec.encode(text) if text else [])

    def _inert(self, text: str) -> str:
        return inert(self.codec, text)

    def _fitting(self, block: str) -> list[int] | None:
        if len(block) > MAX_CHARS_PER_TOKEN * self.max_tokens:
            return None
        ids = self.codec.encode(block)
        return ids if len(ids) <= self.max_tokens else None


def inert(codec: Codec, text: str) -> str:
    """Return a tool's text with marks where it would become added tokens; a codec without these has no `inert`."""
    mark: Callable[[str], str] | None = getattr(codec, "inert", None)
    return mark(text) if mark else text


def cut(text: str, room: int, max_tokens: int, codec: Codec) -> str:
    """The first `room` tokens of a text, in characters. A cut may be inside of a character, which is then left out."""
    return codec.decode(codec.encode(text[: MAX_CHARS_PER_TOKEN * max_tokens])[:room]).rstrip(REPLACEMENT)
