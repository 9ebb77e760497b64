"""Send a ZeRO-3 sharded model to the workers of all engines at once, from rank 0, while its tensors are gathered.

    all ranks   gather a bucket ──> the next bucket ──> ...
    rank 0      copy it into one buffer ──> hash it and send it (weights/broadcast) ──> the digest

Beside the shards this takes the memory of a gathered bucket on every rank, and of two buffers of that size on rank 0.
"""

from __future__ import annotations

from torch import nn

from ...pushes import BUCKET_BYTES, BroadcastResult
from ...weights.broadcast.sender import Sender
from ..lora import hf_weights
from ..weights_file import Buckets, buckets, items_of, on_rank_0


def broadcast_weights(
    module: nn.Module, push: str, sender: Sender, *, rank: int, bucket_bytes: int = BUCKET_BYTES
) -> BroadcastResult | None:
    """Broadcast the full weights of a model with Hugging Face names. Collective.

    Args:
        module: The model.
        push: The identity of the push.
        sender: Rank 0's sender; the others' are not used.
        rank: This rank.
        bucket_bytes: Most bytes that are gathered and sent at the same time.

    Returns:
        The result on rank 0, None elsewhere.

    Raises:
        OSError: On every rank if rank 0 raised one.
    """
    weights = hf_weights(module)
    items = [items_of(bucket) for bucket in buckets(weights, bucket_bytes)]

    def send(gathered: Buckets) -> BroadcastResult:
        return sender.send(push, items, ([(w.name, tensor) for w, tensor in bucket] for bucket in gathered))

    return on_rank_0(weights, send, rank=rank, bucket_bytes=bucket_bytes)
