"""Broadcast stream: named tensors, bucket by bucket, through a group; each side hashes every byte that it sent or
holds.

    send      gathered bucket -> one buffer -> group          hashes of its tensors -> digest
    receive   group -> one buffer -> tensors in it -> `load`  hashes of its tensors -> digest

The digest is that of weights/digest.py, of names, dtypes, shapes and bytes: the same as of a file that holds them. What
comes is announced first, as names, dtypes and shapes per bucket, so memory beyond the model is two buckets on either
side; a tensor larger than a bucket is a bucket of its own."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch

from ...types import BroadcastResult
from ..digest import ITEM_BYTES, chunk_hash, chunks, combine, hashing_threads, tensor_hash
from .group import Group

ALIGNMENT = 16
"""Bytes; every dtype's tensors may begin there."""
TORCH = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
Tensors = list[tuple[str, torch.Tensor]]


class Item(NamedTuple):
    """A tensor to come; `dtype` by its safetensors name."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


class Placed(NamedTuple):
    item: Item
    part: slice
    """Its bytes of the bucket's buffer."""


def placed(bucket: Sequence[Item]) -> tuple[list[Placed], int]:
    """Where in a bucket's buffer each tensor lies, and the size of it."""
    at, out = 0, []
    for item in bucket:
        out.append(Placed(item, slice(at, at + item.nbytes)))
        at += -(-item.nbytes // ALIGNMENT) * ALIGNMENT
    return out, at


def send(group: Group, push: str, buckets: Sequence[Sequence[Item]], gathered: Iterable[Tensors]) -> BroadcastResult:
    """By rank 0: the tensors of `buckets`, each of which is asked of `gathered` when its turn comes. Raises
    BroadcastTorn, and what gathering raises."""
    hashes = _Hashes()
    with group.listening(push), hashing_threads() as pool:
        group.announce(push, json.dumps(buckets))
        under_way = False
        for bucket, tensors in zip(buckets, gathered, strict=True):
            where, size = placed(bucket)
            buffer = torch.empty(size, dtype=torch.uint8, device=group.device)
            for (item, part), (_, tensor) in zip(where, tensors, strict=True):
                buffer[part].copy_(tensor.detach().contiguous().reshape(-1).view(torch.uint8))
                assert buffer[part].numel() == item.nbytes
            if under_way:
                group.join()
            group.start(buffer)
            under_way = group.overlaps
            if not under_way:
                group.join()
            hashes.add(buffer, where, pool)
        if under_way:
            group.join()
        digest = hashes.digest()
        group.forget(push)
    return BroadcastResult(digest, sum(item.nbytes for bucket in buckets for item in bucket))


def receive(group: Group, push: str, load: Callable[[Tensors], None]) -> BroadcastResult:
    """By everybody else. `load` gets each bucket's tensors, which stay as they are for as long as it keeps them. Raises
    BroadcastTorn, and what `load` raises, which ends the push for all."""
    hashes = _Hashes()
    with group.listening(push), hashing_threads() as pool:
        buckets = [
            [Item(name, dtype, tuple(shape)) for name, dtype, shape in bucket]
            for bucket in json.loads(group.announced(push))
        ]
        for where, buffer in _arriving(group, buckets):
            hashes.add(buffer, where, pool)
            load([(item.name, buffer[part].view(TORCH[item.dtype]).view(item.shape)) for item, part in where])
        digest = hashes.digest()
    return BroadcastResult(digest, sum(item.nbytes for bucket in buckets for item in bucket))


def _arriving(group: Group, buckets: Sequence[Sequence[Item]]) -> Iterator[tuple[list[Placed], torch.Tensor]]:
    """Each bucket in a buffer of its own: a loader may keep a view of one until the rest of a layer is there. The next
    is on its way meanwhile."""
    coming: list[tuple[list[Placed], torch.Tensor]] = []

    def begin(bucket: Sequence[Item]) -> None:
        where, size = placed(bucket)
        buffer = torch.empty(size, dtype=torch.uint8, device=group.device)
        group.start(buffer)
        coming.append((where, buffer))

    for i, bucket in enumerate(buckets):
        if not coming:
            begin(bucket)
        group.join()
        arrived = coming.pop()
        if group.overlaps and i + 1 < len(buckets):
            begin(buckets[i + 1])
        yield arrived


class _Hashes:
    """The digest of tensors whose chunks several threads hash meanwhile. Keeps no more than two buckets' buffers."""

    def __init__(self) -> None:
        self._begun: list[list[tuple[Item, list[Future[bytes]]]]] = []
        self._of: dict[str, str] = {}

    def add(self, buffer: torch.Tensor, where: Sequence[Placed], pool: ThreadPoolExecutor) -> None:
        data = buffer.cpu().numpy()
        self._begun.append(
            [(item, [pool.submit(chunk_hash, data[part][cut]) for cut in chunks(item.nbytes)]) for item, part in where]
        )
        while len(self._begun) > 1:
            self._take()

    def digest(self) -> str:
        while self._begun:
            self._take()
        return combine(self._of)

    def _take(self) -> None:
        for item, futures in self._begun.pop(0):
            self._of[item.name] = tensor_hash(item.dtype, item.shape, [f.result() for f in futures])
