"""An engine that writes what a script says, in the policy's own tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...types import Completion, Finish, Sampling

LOGPROB = -0.5
"""The log-prob of every token, because no model is asked."""
EPISODE = re.compile(r"#(\d+)/")
"""Finds the number of the episode in a request_id."""
ROOM = 1 << 20
"""Tokens of a segment that nothing limits."""


class ScriptedEngine:
    """An Engine (ports.py) that plays scripts. The request_id says to which episode of a group a request belongs."""

    def __init__(self, codec: Any, eos: int | None) -> None:
        """Create the engine.

        Args:
            codec: Encodes and decodes text.
            eos: The token that ends a response; None if there is none.
        """
        self.codec = codec
        self.eos = eos
        self.rendered = False
        """True if special tokens in a text are meant as tokens, as in a chat."""
        self.turns: list[list[str]] = []
        """What each episode of the running group will write."""
        self._left: dict[int, str] = {}

    def begin(self, turns: Sequence[Sequence[str]]) -> None:
        """Take the scripts of the next group."""
        self.turns = [list(episode_turns) for episode_turns in turns]
        self._left = {}

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        """Write the next turn of the episode, or the text that the last stop string has left of its turn."""
        number = EPISODE.search(request_id)
        episode = int(number[1]) if number else 0
        text = self._left.pop(episode, "")
        if not text.strip():
            turns = self.turns[episode] if episode < len(self.turns) else []
            text = turns.pop(0) if turns else ""
        completion, left = self.complete(text, sampling.stop, sampling.max_tokens)
        self._left[episode] = left
        return completion

    def complete(self, text: str, stops: Sequence[str], max_tokens: int = ROOM) -> tuple[Completion, str]:
        """Return what an engine returns for a text, and the text that is left after the stop string."""
        ends = [(text.index(stop) + len(stop), stop) for stop in stops if stop in text]
        end, stop = min(ends, default=(len(text), None))
        written = text[:end]
        left = text[end:]
        encode = self.codec.encode_rendered if self.rendered else self.codec.encode
        ids = list(encode(written))
        finish: Finish = "stop"
        if len(ids) > max_tokens:
            ids = ids[:max_tokens]
            finish = "length"
            stop = None
            left = ""
            written = self.codec.decode(ids)
        elif stop is None and self.eos is not None and len(ids) < max_tokens:
            ids.append(self.eos)
        token_ids = np.asarray(ids, np.int32)
        logprobs = np.full(len(ids), LOGPROB, np.float32)
        return Completion(token_ids, logprobs, np.zeros(len(ids), np.int32), written, finish, stop), left
