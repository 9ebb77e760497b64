"""Send named tensors through a group, bucket by bucket, and hash every byte on both sides.

    send      gathered bucket -> one buffer -> group          hashes of its tensors -> digest
    receive   group -> one buffer -> tensors in it -> `load`  hashes of its tensors -> digest

The digest is that of weights/digest.py, so it equals the digest of a file with the same tensors. Rank 0 first announces
the names, dtypes and shapes of all buckets. Beside the model each side needs the memory of two buckets. A tensor that
is larger than a bucket is a bucket of its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch

from ...pushes import BroadcastResult, Item
from ..digest import ITEM_BYTES, chunk_hash, chunks, combine, hashing_threads, tensor_hash
from ..host_bytes import aligned, host_bytes
from .group import Group

TORCH = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
Tensors = list[tuple[str, torch.Tensor]]


class Placement(NamedTuple):
    """Where a tensor is in its bucket's buffer."""

    item: Item
    part: slice
    """Its bytes of the buffer."""


def place_bucket(bucket: Sequence[Item]) -> tuple[list[Placement], int]:
    """Return the place of each tensor in the bucket's buffer, and the size of the buffer in bytes."""
    offset = 0
    placements = []
    for item in bucket:
        size = nbytes(item)
        placements.append(Placement(item, slice(offset, offset + size)))
        offset += aligned(size)
    return placements, offset


def nbytes(item: Item) -> int:
    """Return the size of a tensor in bytes."""
    return math.prod(item.shape) * ITEM_BYTES[item.dtype]


def send(group: Group, push: str, buckets: Sequence[Sequence[Item]], gathered: Iterable[Tensors]) -> BroadcastResult:
    """Send a push from rank 0.

    Args:
        group: The group.
        push: The identity of the push.
        buckets: Names, dtypes and shapes of the tensors in each bucket.
        gathered: Yields the tensors of each bucket when its turn comes.

    Returns:
        The digest and the number of bytes.

    Raises:
        BroadcastTorn: The push was torn. Errors of `gathered` are raised as they are, and end the push for all.
    """
    hashes = _Hashes()
    with group.listening(push), hashing_threads() as pool:
        group.announce(push, json.dumps(buckets))
        sending = False
        for bucket, tensors in zip(buckets, gathered, strict=True):
            placements, size = place_bucket(bucket)
            buffer = torch.empty(size, dtype=torch.uint8, device=group.device)
            for (item, part), (_, tensor) in zip(placements, tensors, strict=True):
                buffer[part].copy_(tensor.detach().contiguous().reshape(-1).view(torch.uint8))
                assert buffer[part].numel() == nbytes(item)
            if sending:
                group.join()
            group.start(buffer)
            sending = group.overlaps
            if not sending:
                group.join()
            hashes.add(buffer, placements, pool)
        if sending:
            group.join()
        digest = hashes.digest()
        group.forget(push)
    return BroadcastResult(digest, sum(nbytes(item) for bucket in buckets for item in bucket))


def receive(group: Group, push: str, load: Callable[[Tensors], None]) -> BroadcastResult:
    """Receive a push on another rank than 0.

    Args:
        group: The group.
        push: The identity of the push.
        load: Called with the tensors of each bucket. It may keep them: their memory is not used again.

    Returns:
        The digest and the number of bytes.

    Raises:
        BroadcastTorn: The push was torn. Errors of `load` are raised as they are, and end the push for all.
    """
    hashes = _Hashes()
    with group.listening(push), hashing_threads() as pool:
        buckets = [
            [Item(name, dtype, tuple(shape)) for name, dtype, shape in bucket]
            for bucket in json.loads(group.announced(push))
        ]
        for placements, buffer in _received(group, buckets):
            hashes.add(buffer, placements, pool)
            load([(item.name, buffer[part].view(TORCH[item.dtype]).view(item.shape)) for item, part in placements])
        digest = hashes.digest()
    return BroadcastResult(digest, sum(nbytes(item) for bucket in buckets for item in bucket))


def _received(group: Group, buckets: Sequence[Sequence[Item]]) -> Iterator[tuple[list[Placement], torch.Tensor]]:
    """Yield the places and the buffer of each bucket, while the next one is being received.

    Each bucket has a buffer of its own, because a loader may keep views of it until the rest of a layer arrives.
    """
    started: list[tuple[list[Placement], torch.Tensor]] = []

    def start(bucket: Sequence[Item]) -> None:
        placements, size = place_bucket(bucket)
        buffer = torch.empty(size, dtype=torch.uint8, device=group.device)
        group.start(buffer)
        started.append((placements, buffer))

    for i, bucket in enumerate(buckets):
        if not started:
            start(bucket)
        group.join()
        arrived = started.pop()
        if group.overlaps and i + 1 < len(buckets):
            start(buckets[i + 1])
        yield arrived


class _Hashes:
    """Computes the digest of tensors in threads, while others are sent. Keeps at most two buckets' buffers alive."""

    def __init__(self) -> None:
        self._pending: list[list[tuple[Item, list[Future[bytes]]]]] = []
        self._hash_of: dict[str, str] = {}

    def add(self, buffer: torch.Tensor, placements: Sequence[Placement], pool: ThreadPoolExecutor) -> None:
        """Start to hash the tensors of a bucket."""
        [data] = host_bytes([buffer])
        self._pending.append(
            [
                (item, [pool.submit(chunk_hash, data[part][chunk]) for chunk in chunks(nbytes(item))])
                for item, part in placements
            ]
        )
        while len(self._pending) > 1:
            self._finish_oldest()

    def digest(self) -> str:
        """Wait for all hashes and return the digest."""
        while self._pending:
            self._finish_oldest()
        return combine(self._hash_of)

    def _finish_oldest(self) -> None:
        for item, futures in self._pending.pop(0):
            self._hash_of[item.name] = tensor_hash(item.dtype, item.shape, [f.result() for f in futures])
