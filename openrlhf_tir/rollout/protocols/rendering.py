"""Turn what the environment says into text and tokens behind what was sampled.

`TextRenderer` inserts blocks of text, as a turn protocol writes them. For chat messages see chat_rendering.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from ...engines.codec import REPLACEMENT
from ...inert import plain
from ...ports import Codec
from ...types import Completion
from . import TurnProtocol

MAX_CHARS_PER_TOKEN = 256
"""No vocabulary has a longer token. A text with more characters than this allows is too long without being
tokenised."""


class RenderedText(NamedTuple):
    """Text of the environment.

    Attributes:
        text: The text.
        ids: Its tokens.
    """

    text: str
    ids: list[int]


class ObservationRenderer(Protocol):
    """Renders the observations of one episode; one instance per episode."""

    def start(self, prompt_ids: list[int], observation: str) -> tuple[list[int], RenderedText]:
        """Return the prompt's tokens, and what is shown behind it before anything is sampled.

        Args:
            prompt_ids: Tokens of the task's prompt.
            observation: What the environment said when it was reset; may be empty.
        """

    def read_completion(self, completion: Completion) -> Completion:
        """Return what was just sampled as the protocol reads it."""

    def continue_with(self, observation: str) -> RenderedText:
        """Render an observation after which the model writes on."""

    def end_with(self, observation: str) -> RenderedText:
        """Render an observation with nothing behind it: the environment ended the episode."""

    def insert(self, text: str) -> RenderedText:
        """Render text of the protocol itself."""


class TextRenderer:
    """Renders an observation as the block of text that the turn protocol writes."""

    def __init__(self, protocol: TurnProtocol, codec: Codec, max_tokens: int) -> None:
        """Create the renderer of one episode.

        Args:
            protocol: The episode's protocol.
            codec: The tokenizer.
            max_tokens: Largest number of tokens of one inserted block.
        """
        self.protocol = protocol
        self.codec = codec
        self.max_tokens = max_tokens

    def start(self, prompt_ids: list[int], observation: str) -> tuple[list[int], RenderedText]:
        """See ObservationRenderer."""
        return prompt_ids, self.insert(inert(self.codec, observation))

    def read_completion(self, completion: Completion) -> Completion:
        """See ObservationRenderer."""
        return completion

    def continue_with(self, observation: str) -> RenderedText:
        """See ObservationRenderer."""
        block, ids = self._block(observation)
        behind = self.protocol.after_insertion()
        return self.insert(block + behind) if behind else RenderedText(plain(block), ids)

    def end_with(self, observation: str) -> RenderedText:
        """See ObservationRenderer."""
        block, ids = self._block(observation)
        return RenderedText(plain(block), ids)

    def insert(self, text: str) -> RenderedText:
        """See ObservationRenderer."""
        return RenderedText(plain(text), self.codec.encode(text) if text else [])

    def _block(self, observation: str) -> tuple[str, list[int]]:
        """Return the inserted block, shortened to fit, with marks in the observation; and its tokens."""
        block = self.protocol.insertion(inert(self.codec, observation))
        if len(block) <= MAX_CHARS_PER_TOKEN * self.max_tokens:
            ids = self.codec.encode(block)
            if len(ids) <= self.max_tokens:
                return block, ids
        message = self.protocol.too_long()
        if message is None:
            room = max(0, self.max_tokens - len(self.codec.encode(self.protocol.insertion(""))))
            message = inert(self.codec, cut(observation, room, self.codec))
        block = self.protocol.insertion(message)
        return block, self.codec.encode(block)


def inert(codec: Codec, text: str) -> str:
    """Return a tool's text with marks where it would become special tokens, if the codec has such tokens."""
    mark: Callable[[str], str] | None = getattr(codec, "inert", None)
    return mark(text) if mark else text


def cut(text: str, room: int, codec: Codec) -> str:
    """Return the text of the first `room` tokens. A character that the cut would split is left out.

    Text beyond what these tokens can hold is not tokenised at all.
    """
    # As it will be tokenised: the text of an added token is several tokens then.
    ids = codec.encode(inert(codec, text[: MAX_CHARS_PER_TOKEN * room]))
    return codec.decode(ids[:room]).rstrip(REPLACEMENT)
