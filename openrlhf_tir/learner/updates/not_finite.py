"""Name what was not finite in an update that was skipped: which tensor, of which trajectory.

This runs only after an update was skipped, so a healthy step pays nothing. The weights are still those from before the
update, and one more forward pass computes their log-probs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ...types import TrainBatch
from ..packing import Row
from ..rows import Sample

MAX_NAMED = 4
"""Most trajectories that a message names for each tensor."""
Fault = tuple[str, int, int]
"""(name of the tensor, b, i): of the i-th valid trajectory of the batch's group b."""


def find_faults(samples: Sequence[Sample], rows: Sequence[Row], log_probs: Sequence[np.ndarray]) -> Iterator[Fault]:
    """Yield the tensors that are not finite on this rank.

    Advantages are checked before whitening, because a single NaN turns all whitened advantages of the batch into NaN.

    Args:
        samples: The samples of the update.
        rows: The rows of those samples that count.
        log_probs: [L-1] of each row, under the weights before the update.
    """
    counted = (s for s in samples if s.counts)
    for sample, row, scores in zip(counted, rows, log_probs, strict=True):
        tensors = {**row.fields, "advantages": sample.advantages, "log_probs": scores}
        for name, values in tensors.items():
            if not np.isfinite(values).all():
                yield (name, *sample.key[:2])


def describe_faults(batch: TrainBatch, version: int, faults: Iterable[Fault]) -> str:
    """Return a sentence about the skipped update that started from `version`.

    Args:
        batch: The batch, for the names of its groups.
        version: The learner's version.
        faults: Those of all ranks.
    """
    by_tensor: dict[str, list[str]] = {}
    for name, b, i in sorted(set(faults)):
        meta = batch.items[b].meta
        by_tensor.setdefault(name, []).append(f"{meta.key} sample {meta.index[i]}")
    if not by_tensor:
        return (
            f"Update {version}: everything that enters its loss is finite, so the gradient overflowed on its way"
            " through the model."
        )
    parts = []
    for name, trajectories in by_tensor.items():
        more = f" and {len(trajectories) - MAX_NAMED} more" if len(trajectories) > MAX_NAMED else ""
        parts.append(f"{name} of {', '.join(trajectories[:MAX_NAMED])}{more}")
    return f"Update {version}, not finite: {'; '.join(parts)}."
