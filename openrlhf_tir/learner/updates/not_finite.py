"""Not finite: the samples of an update whose gradient is not -> which tensor is not, and of which trajectory.

Asked once the update has been left out, so that a healthy step pays nothing: the weights are those before it, and one
forward pass more tells their log-probs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ...types import TrainBatch
from ..packing import Row
from ..rows import Sample

NAMED = 4
"""Trajectories of a tensor that are named in a message."""
Fault = tuple[str, int, int]
"""(tensor, b, i): of trajectory i of the batch's group b."""


def faults(samples: Sequence[Sample], rows: Sequence[Row], log_probs: Sequence[np.ndarray]) -> Iterator[Fault]:
    """rows: of the samples that count; log_probs: [L-1] of each row, under the weights that were to be updated.

    Advantages are looked at before whitening, which would make those of the whole batch NaN."""
    for sample, row, scored in zip((s for s in samples if s.counts), rows, log_probs, strict=True):
        tensors = {**row.fields, "advantages": sample.advantages, "log_probs": scored}
        yield from ((name, *sample.key[:2]) for name, values in tensors.items() if not np.isfinite(values).all())


def told(batch: TrainBatch, version: int, found: Iterable[Fault]) -> str:
    """A sentence about the update on `version`; `found`: by all ranks."""
    by_tensor: dict[str, list[str]] = {}
    for name, b, i in sorted(set(found)):
        meta = batch.items[b].meta
        by_tensor.setdefault(name, []).append(f"{meta.key} sample {meta.index[i]}")
    if not by_tensor:
        return (
            f"Update {version}: all that enters its loss is finite, so the gradient has overflowed on its way through"
            " the model."
        )
    parts = [
        f"{name} of {', '.join(of[:NAMED])}{f' and {len(of) - NAMED} more' if len(of) > NAMED else ''}"
        for name, of in by_tensor.items()
    ]
    return f"Update {version}, not finite: {'; '.join(parts)}."
