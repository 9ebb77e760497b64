"""Keep the weights of the last push on rank 0's host, so that the next push can be a delta.

They take as much memory as the file of a full push.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


class LastPush:
    """The bits that the engines hold."""

    def __init__(self) -> None:
        self.tensors: dict[str, np.ndarray] = {}
        """[bytes] uint8 by Hugging Face name."""
        self.digest: str | None = None
        """The digest of all tensors. None before the first push, while they are changed, and after a failed push."""

    def begin(self, nbytes: Mapping[str, int]) -> None:
        """Prepare to overwrite all tensors. `nbytes` are their new sizes in bytes by name."""
        self.digest = None
        if {name: len(data) for name, data in self.tensors.items()} != dict(nbytes):
            self.tensors.clear()  # first, so that old and new tensors are never in memory together
            self.tensors = {name: np.empty(n, np.uint8) for name, n in nbytes.items()}
