"""Weights broadcast: a ZeRO-3 sharded model -> the workers of all engines at once, sent by rank 0 while tensors are
gathered.

    all ranks   gather a bucket ──> the next bucket ──> ...
    rank 0      copy it into one buffer ──> hash it, send it (weights/broadcast) ──> the digest

Memory beyond the shards: a gathered bucket on every rank, and two buffers of that size on rank 0.
"""

from __future__ import annotations

from torch import nn

from ...types import BroadcastResult
from ...weights.broadcast.sender import Sender
from ...weights.broadcast.stream import Item
from ..lora import hf_weights
from ..weights_file import DTYPES, Buckets, buckets, full_shape, on_rank_0


def broadcast_weights(
    module: nn.Module, push: str, sender: Sender, *, rank: int, sharded: bool, bucket_bytes: int
) -> BroadcastResult | None:
    """Collective. What became of it on rank 0, whose `sender` it is; None elsewhere."""
    weights = hf_weights(module)
    items = [
        [Item(w.name, DTYPES[w.tensor.dtype], full_shape(w.tensor)) for w in bucket]
        for bucket in buckets(weights, bucket_bytes)
    ]

    def work(gathered: Buckets) -> BroadcastResult:
        return sender.send(push, items, ([(w.name, tensor) for w, tensor in bucket] for bucket in gathered))

    return on_rank_0(weights, work, rank=rank, sharded=sharded, bucket_bytes=bucket_bytes)
