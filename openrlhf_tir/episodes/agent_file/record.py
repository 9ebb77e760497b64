"""Record: what the engine sampled for a worker, until the trajectory that it belongs to is made.

Which `execute` a request belongs to is not always known (a file may ask from a server thread of its own), so it is
found by its tokens: a range of a result is trained only if the engine sampled exactly these tokens after exactly those
before them."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...types import Completion, Sampling


@dataclass(frozen=True, slots=True)
class Sampled:
    sampling: Sampling
    completion: Completion


def _digest(token_ids: Sequence[int]) -> bytes:
    return hashlib.blake2b(np.asarray(token_ids, np.int64).tobytes(), digest_size=16).digest()


class Record:
    """Owned by one worker process."""

    def __init__(self, keep_s: float) -> None:
        """What was taken by no trajectory is forgotten after `keep_s`: the longest that a group lives."""
        self.keep_s = keep_s
        self._by_prompt: dict[bytes, list[Sampled]] = {}
        self._ages: deque[tuple[float, bytes, Sampled]] = deque()

    def __len__(self) -> int:
        return sum(map(len, self._by_prompt.values()))

    def add(self, prompt_ids: Sequence[int], sampling: Sampling, completion: Completion, now: float) -> None:
        key, sampled = _digest(prompt_ids), Sampled(sampling, completion)
        self._by_prompt.setdefault(key, []).append(sampled)
        self._ages.append((now, key, sampled))
        while self._ages and (self._ages[0][0] < now - self.keep_s or not self._holds(*self._ages[0][1:])):
            self._drop(*self._ages.popleft()[1:])

    def take(self, before: Sequence[int], tokens: Sequence[int]) -> Sampled | None:
        """What was sampled after `before` and begins with `tokens`: the same tokens if there are. Found once."""
        key, wanted = _digest(before), list(tokens)
        found = [s for s in self._by_prompt.get(key, ()) if s.completion.token_ids[: len(wanted)].tolist() == wanted]
        if not found:
            return None
        best = min(found, key=lambda s: len(s.completion.token_ids))
        self._drop(key, best)
        return best

    def _holds(self, key: bytes, sampled: Sampled) -> bool:
        return any(s is sampled for s in self._by_prompt.get(key, ()))

    def _drop(self, key: bytes, sampled: Sampled) -> None:
        rest = [s for s in self._by_prompt.get(key, ()) if s is not sampled]
        if rest:
            self._by_prompt[key] = rest
        else:
            self._by_prompt.pop(key, None)
