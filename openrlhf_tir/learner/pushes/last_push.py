"""Last push: the bits that engines have, kept by rank 0 on its host, so that the next push can say what changed. As
large as the file of a full push.

A delta is written from what differs, and only afterwards, beside whatever comes next, brings this copy up to date: to
write both at once would send the whole copy back to memory while the push is waited for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from ...weights.delta import Piece, apply

Change = tuple[np.ndarray, Piece]
"""Elements of a tensor here, [n] signed integers of its size, and what makes the new ones of them."""


class LastPush:
    def __init__(self) -> None:
        self.tensors: dict[str, np.ndarray] = {}
        """HF name -> [bytes] uint8; after `settle`."""
        self.digest: str | None = None
        """The digest of all tensors; None until the first push, while they change, and after a failed push."""
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="last push")
        self._following: Future[None] | None = None

    def begin(self, nbytes: Mapping[str, int]) -> None:
        """They are written anew, all of them."""
        self.settle()
        self.digest = None
        if {name: len(data) for name, data in self.tensors.items()} != dict(nbytes):
            self.tensors.clear()  # before the new ones: never twice in memory
            self.tensors = {name: np.empty(n, np.uint8) for name, n in nbytes.items()}

    def follow(self, changes: Sequence[Change], digest: str) -> None:
        """The changes make the tensors those of `digest`; they are made beside what comes next."""
        self.settle()
        self.digest, self._following = digest, self._beside.submit(_follow, changes)

    def settle(self) -> None:
        """Until the last `follow` is through. One that fails leaves nothing to continue."""
        following, self._following = self._following, None
        if following is None:
            return
        try:
            following.result()
        except BaseException:
            self.digest = None
            raise


def _follow(changes: Sequence[Change]) -> None:
    for elements, piece in changes:
        apply(piece, elements)
