"""Digest of named tensors: what the learner published and what an engine loaded can be compared by one string.

sha256 over (name, dtype, shape, bytes) of every tensor, in order of names. dtype is safetensors' name (F32, BF16, ...), so the same
weights give the same digest whichever library holds them. Torch is not needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence


class TensorDigest:
    """Feed tensors in ascending order of names; then `hexdigest`."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()
        self._last = ""

    def update(self, name: str, dtype: str, shape: Sequence[int], data: bytes | memoryview) -> None:
        if name <= self._last:
            raise ValueError(f"tensor {name!r} came after {self._last!r}: the digest needs each name once, in ascending order. Sort the tensors.")
        self._last = name
        self._sha.update(f"{name}\0{dtype}\0{','.join(map(str, shape))}\0".encode())
        self._sha.update(data)

    def hexdigest(self) -> str:
        return self._sha.hexdigest()


def tensors_digest(items: Iterable[tuple[str, str, Sequence[int], bytes | memoryview]]) -> str:
    """Digest of (name, dtype, shape, bytes) items in ascending order of names."""
    digest = TensorDigest()
    for item in items:
        digest.update(*item)
    return digest.hexdigest()
