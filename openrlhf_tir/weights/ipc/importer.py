"""The importer's side, in an engine's worker: map exposed buckets, check their digests, and return their tensors.

Nothing is copied here. The tensors are views of the learner's memory and change when it is filled again: whoever needs
them longer than until the answer to the call must copy them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...pushes import ExposedBucket, Item
from ..broadcast.stream import TORCH, Tensors, place_bucket
from .device_digest import bucket_digest, word_sums
from .exposer import reason_of
from .sharing import device_name, mapped, synchronise


class CannotMap(Exception):
    """A bucket cannot be mapped here, or is not the announced one. The message says why."""


class Importer:
    """A worker's mappings of the learner's buffers."""

    def __init__(self, device: torch.device) -> None:
        """Create it. `device` is the one of the worker's model."""
        self.device = device
        self._mapped: dict[bytes, torch.Tensor] = {}
        """The learner's buffers that are mapped here, by their handles."""
        self._views: dict[bytes, tuple[list[Item], Tensors]] = {}
        """The tensors in each mapped buffer, with the items that they were made for: the same in every push."""

    def begin(self, buckets: Sequence[ExposedBucket]) -> None:
        """Map the first buckets of a push, unmap what is no longer exposed, and check the digests.

        Raises:
            CannotMap: A bucket is on another device, cannot be mapped, or is not the announced one.
        """
        handles = {handle for bucket in buckets for handle in bucket.handles.values()}
        # The exporter of any other buffer has another one by now, or is gone.
        self._mapped = {handle: buffer for handle, buffer in self._mapped.items() if handle in handles}
        self._views = {handle: views for handle, views in self._views.items() if handle in handles}
        self.check(buckets)

    def tensors(self, bucket: ExposedBucket) -> Tensors:
        """Return the tensors of a bucket, as views of the learner's memory.

        Raises:
            CannotMap: It is on another device or cannot be mapped.
        """
        handle, buffer = self._buffer(bucket)
        items, views = self._views.get(handle, ([], []))
        if items == bucket.items and views:
            return views
        placements, size = place_bucket(bucket.items)
        if size != bucket.nbytes:
            raise CannotMap(f"its tensors take {size} bytes, and {bucket.nbytes} were announced")
        views = [(item.name, buffer[part].view(TORCH[item.dtype]).view(item.shape)) for item, part in placements]
        self._views[handle] = (bucket.items, views)
        return views

    def check(self, buckets: Sequence[ExposedBucket]) -> None:
        """Compare the digests of what is mapped with the announced ones. Reads the host once.

        Raises:
            CannotMap: They differ, or a bucket is on another device or cannot be mapped.
        """
        if not buckets:
            return
        sums = torch.stack([word_sums(self._buffer(bucket)[1]) for bucket in buckets]).tolist()
        for bucket, found in zip(buckets, sums, strict=True):
            if (digest := bucket_digest(bucket.items, found)) != bucket.digest:
                raise CannotMap(
                    f"the mapped memory has digest {digest[:12]}, and the learner announced {bucket.digest[:12]}"
                )

    def acknowledge(self) -> None:
        """Wait until this process has read everything that it started to read: the learner may write after it."""
        synchronise(self.device)

    def leave(self) -> None:
        """Unmap everything."""
        self._views.clear()
        self._mapped.clear()

    def _buffer(self, bucket: ExposedBucket) -> tuple[bytes, torch.Tensor]:
        """Return the handle and the bytes of a bucket."""
        own = device_name(self.device)
        handle = bucket.handles.get(own)
        if handle is None:
            raise CannotMap(f"this engine is on {own}, and the learner has exposed {', '.join(bucket.handles) or '-'}")
        try:
            if handle not in self._mapped:
                self._mapped[handle] = mapped(handle, self.device)
            return handle, self._mapped[handle][: bucket.nbytes]
        except Exception as error:  # whatever CUDA, the container or torch have against it
            raise CannotMap(f"{own} does not map the learner's memory: {reason_of(error)}") from error


def plain_buckets(buckets: Sequence[ExposedBucket]) -> list[list[Any]]:
    """Return buckets as lists, numbers and bytes, which cross to vLLM's processes."""
    return [[[[name, dtype, list(shape)] for name, dtype, shape in bucket.items], *bucket[1:]] for bucket in buckets]


def buckets_of(plain: Sequence[Sequence[Any]]) -> list[ExposedBucket]:
    """Return what `plain_buckets` was given."""
    return [
        ExposedBucket([Item(name, dtype, tuple(shape)) for name, dtype, shape in items], *others)
        for items, *others in plain
    ]
