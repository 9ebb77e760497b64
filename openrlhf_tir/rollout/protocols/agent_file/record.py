"""Keep what the engine sampled for a worker until the trajectory that it belongs to is built.

Which `execute` a request belongs to is not always known (a file may ask from a server thread of its own). So a
completion is looked up by its tokens: a range of a result is trained only if the engine sampled exactly these tokens
behind exactly the tokens before them.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....types import Completion, Sampling


@dataclass(frozen=True, slots=True)
class Sampled:
    """A completion, and how it was sampled."""

    sampling: Sampling
    completion: Completion


def _digest(token_ids: Sequence[int]) -> bytes:
    return hashlib.blake2b(np.asarray(token_ids, np.int64).tobytes(), digest_size=16).digest()


class Record:
    """The completions of one worker process that no trajectory has taken yet."""

    def __init__(self, keep_s: float) -> None:
        """Create an empty record.

        Args:
            keep_s: Seconds after which a completion is dropped: no group lives longer.
        """
        self.keep_s = keep_s
        self._by_prompt: dict[bytes, list[Sampled]] = {}
        self._ages: deque[tuple[float, bytes, Sampled]] = deque()

    def __len__(self) -> int:
        return sum(map(len, self._by_prompt.values()))

    def add(self, prompt_ids: Sequence[int], sampling: Sampling, completion: Completion, now: float) -> None:
        """Keep a completion, and drop those that are too old.

        Args:
            prompt_ids: [P] tokens behind which it was sampled.
            sampling: How it was sampled.
            completion: The completion.
            now: Event loop time in seconds.
        """
        key = _digest(prompt_ids)
        sampled = Sampled(sampling, completion)
        self._by_prompt.setdefault(key, []).append(sampled)
        self._ages.append((now, key, sampled))
        while self._ages and (self._ages[0][0] < now - self.keep_s or not self._holds(*self._ages[0][1:])):
            self._drop(*self._ages.popleft()[1:])

    def take(self, before: Sequence[int], tokens: Sequence[int]) -> Sampled | None:
        """Remove and return the completion behind `before` that begins with `tokens`; None if there is none.

        Of several the shortest is taken, which is the one with exactly these tokens if there is one.
        """
        key = _digest(before)
        prefix = list(tokens)
        matching = [
            sampled
            for sampled in self._by_prompt.get(key, ())
            if sampled.completion.token_ids[: len(prefix)].tolist() == prefix
        ]
        if not matching:
            return None
        shortest = min(matching, key=lambda sampled: len(sampled.completion.token_ids))
        self._drop(key, shortest)
        return shortest

    def _holds(self, key: bytes, sampled: Sampled) -> bool:
        return any(other is sampled for other in self._by_prompt.get(key, ()))

    def _drop(self, key: bytes, sampled: Sampled) -> None:
        others = [other for other in self._by_prompt.get(key, ()) if other is not sampled]
        if others:
            self._by_prompt[key] = others
        else:
            self._by_prompt.pop(key, None)
