"""Last push: the bits that engines have, kept by rank 0 on its host, so that the next push can say what changed. As
large as the file of a full push."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


class LastPush:
    def __init__(self) -> None:
        self.tensors: dict[str, np.ndarray] = {}
        """HF name -> [bytes] uint8."""
        self.digest: str | None = None
        """The digest of all tensors; None until the first push, while they change, and after a failed push."""

    def begin(self, nbytes: Mapping[str, int]) -> None:
        """They are written anew, all of them."""
        self.digest = None
        if {name: len(data) for name, data in self.tensors.items()} != dict(nbytes):
            self.tensors.clear()  # before the new ones: never twice in memory
            self.tensors = {name: np.empty(n, np.uint8) for name, n in nbytes.items()}
