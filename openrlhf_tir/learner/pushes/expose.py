"""Expose the weights of a ZeRO-3 sharded model to engines on the same devices, bucket by bucket.

    all ranks   gather a bucket ──> copy it into a buffer that the engine's worker maps (weights/ipc) ──> its digest

Each call gathers its buckets by itself and leaves nothing gathered, so that a push may end between two calls without
trace. With one rank DeepSpeed gathers nothing: its shard is the tensor. Every rank copies, because the engine on its
device can map no other rank's memory.
"""

from __future__ import annotations

import deepspeed
from torch import nn

from ...pushes import BUCKET_BYTES, EXPOSED_BUCKETS, Exposed, ExposedBucket
from ...weights.ipc.exposer import Exposer, reason_of
from ..lora import hf_weights
from ..weights_file import buckets, items_of


def expose_weights(
    module: nn.Module, push: str, first: int, exposer: Exposer, *, bucket_bytes: int = BUCKET_BYTES
) -> Exposed:
    """Expose the next buckets of the full weights with Hugging Face names. Collective.

    Args:
        module: The model.
        push: The identity of the push.
        first: Number of the first bucket. 0 exposes EXPOSED_BUCKETS buckets, later calls one.
        exposer: This rank's buffers.
        bucket_bytes: Most bytes of a bucket, unless a single tensor is larger.

    Returns:
        The buckets, or this rank's fault. A rank that cannot copy still takes part in gathering.
    """
    parts = list(buckets(hf_weights(module), bucket_bytes))
    items = [items_of(part) for part in parts]
    end = min(first + (1 if first else EXPOSED_BUCKETS), len(parts))
    exposed: list[ExposedBucket] = []
    fault = None
    try:
        exposer.reserve(items)
    except (RuntimeError, OSError, ValueError, TypeError) as error:
        fault = reason_of(error)
    for number in range(first, end):
        params = [p for weight in parts[number] for p in weight.gathered]
        with deepspeed.zero.GatheredParameters(params):
            if fault is None:
                try:
                    tensors = [(weight.name, weight.value()) for weight in parts[number]]
                    exposed.append(exposer.fill(number, items[number], tensors))
                except RuntimeError as error:
                    fault = reason_of(error)
    if fault is not None:
        exposer.release()  # the transport pushes by file from now on
    return Exposed(push, exposed if fault is None else [], len(parts) - end, fault)
