"""The exporter's side: copy buckets of weights into buffers on the device, which workers of engines map.

There are EXPOSED_BUCKETS buffers, two; bucket i goes into buffer i modulo two. So a bucket is copied only when every
worker has acknowledged the one that is two before it, for which the transport waits. The buffers are kept for the next
push: their handles stay valid, a worker maps them once, and no push allocates anything.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import torch

from ...pushes import EXPOSED_BUCKETS, Exposed, ExposedBucket, Item
from ..broadcast.stream import Tensors, nbytes, place_bucket
from ..host_bytes import aligned
from .device_digest import bucket_digest, word_sums
from .sharing import cuda_handle, device_name, shared_buffer, synchronise

TRIAL_BYTES = 1 << 16


class Exposer:
    """A learner rank's buffers on its device."""

    def __init__(self, device: torch.device) -> None:
        """Create it; memory is taken by the first push."""
        self.device = device
        self._slots: list[torch.Tensor] = []
        self._handles: list[bytes] = []
        self._trial: torch.Tensor | None = None

    def trial(self) -> Exposed:
        """Expose random bytes, with which a new engine finds out whether it can map this device's memory.

        The buffers get new handles, because an engine that has ended may have released the old ones.
        """
        name = f"trial {uuid.uuid4().hex}"
        try:
            if self.device.type == "cuda":
                self._handles = [cuda_handle(slot) for slot in self._slots]
            self._trial, handle = shared_buffer(TRIAL_BYTES, self.device)
            self._trial.random_(0, 256)
            bucket = self._bucket([Item("trial", "U8", (TRIAL_BYTES,))], self._trial, handle)
        except (RuntimeError, OSError, ValueError, TypeError) as error:
            return Exposed(name, [], fault=reason_of(error))
        return Exposed(name, [bucket])

    def reserve(self, buckets: Sequence[Sequence[Item]]) -> None:
        """Take the memory for these buckets, if the buffers are too small or too few for them.

        Raises:
            RuntimeError: There is no memory, or it cannot be shared.
        """
        size = max(place_bucket(bucket)[1] for bucket in buckets)
        count = min(EXPOSED_BUCKETS, len(buckets))
        if len(self._slots) >= count and self._slots[0].numel() >= size:
            return
        self.release()
        for _ in range(count):
            slot, handle = shared_buffer(size, self.device)
            self._slots.append(slot)
            self._handles.append(handle)

    def fill(self, number: int, bucket: Sequence[Item], tensors: Tensors) -> ExposedBucket:
        """Copy the tensors of bucket `number` into its buffer and return what a worker needs to read it.

        The copy is complete on return.
        """
        placements, size = place_bucket(bucket)
        buffer = self._slots[number % EXPOSED_BUCKETS][:size]
        for (item, part), (_, tensor) in zip(placements, tensors, strict=True):
            aligned_end = part.start + aligned(nbytes(item))
            if aligned_end > part.stop:
                buffer[part.stop : aligned_end].zero_()  # equal weights must have equal digests
            if nbytes(item):
                target = buffer[part].view(tensor.dtype).view(tensor.shape)
                target.copy_(tensor.detach())
        return self._bucket(bucket, buffer, self._handles[number % EXPOSED_BUCKETS])

    def release(self) -> None:
        """Give the buffers back. Workers that still map them keep their memory until they map others."""
        self._slots.clear()
        self._handles.clear()
        self._trial = None
        if self.device.type == "cuda":
            torch.cuda.ipc_collect()

    def _bucket(self, items: Sequence[Item], buffer: torch.Tensor, handle: bytes) -> ExposedBucket:
        sums = word_sums(buffer).tolist()  # waits for the copies as well
        synchronise(self.device)
        handles = {device_name(self.device): handle}
        return ExposedBucket(list(items), buffer.numel(), bucket_digest(items, sums), handles)


def reason_of(error: BaseException) -> str:
    """Return an error as one line: torch puts its C++ stack into the others."""
    line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__
