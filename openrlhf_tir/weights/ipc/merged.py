"""Combine what the learner's ranks have exposed, and the digests of a push's buckets. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import xxhash

from ...pushes import Exposed


def merged(parts: Sequence[Exposed]) -> Exposed:
    """Return the buckets of all ranks as one: each has the handles of all devices. A fault of any rank is everyone's.

    With ZeRO-3 every rank gathers every weight, so each rank exposes the same tensors to the engine on its own device.
    """
    for part in parts:
        if part.fault:
            return part
    first = parts[0]
    buckets = [
        bucket._replace(handles={device: h for part in parts for device, h in part.buckets[number].handles.items()})
        for number, bucket in enumerate(first.buckets)
    ]
    return first._replace(buckets=buckets)


def push_digest(buckets: Iterable[str]) -> str:
    """Return the digest of a push, given the digests of its buckets in order."""
    return xxhash.xxh3_128_hexdigest("".join(f"bucket {digest}\n" for digest in buckets).encode())
