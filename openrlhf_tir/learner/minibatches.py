"""Mini-batches: a rollout batch -> the updates that it is cut into. Pure, no torch: the controller runs it.

    batch of n samples --train.max_epochs times: shuffle, cut--> parts of about train.batch_size --balance.py--> which rank trains what

The order is drawn from (train.seed, version, epoch), so a resumed run cuts as the other would have, and before anything is known of ranks, so
that any number of them trains the same parts. A trajectory that failed is not there to be trained: the parts are then smaller, never fewer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..config import Config
from ..types import BatchItem, GroupMeta, TrainBatch
from .balance import assign_ranks

Sample = tuple[int, int]
"""(b, i): valid trajectory i of group b."""


def train_batch(cfg: Config, version: int, items: list[BatchItem]) -> TrainBatch:
    """What the learner is given at `version`."""
    metas, ranks = [item.meta for item in items], cfg.shards
    whole = assign_ranks(metas, ranks)
    if cfg.updates_per_batch == 1:
        return TrainBatch(version, items, whole)
    parts = [part for epoch in range(cfg.train.max_epochs) for part in cut(metas, cfg.minibatches, (cfg.train.seed, version, epoch))]
    cuts = [assign_ranks(metas, ranks, part) for part in parts]
    if cfg.train.max_epochs == 1:  # what a rank computes for the whole batch is then there where it is trained
        whole = {**whole, **{sample: rank for each in cuts for sample, rank in each.items()}}
    return TrainBatch(version, items, whole, cuts)


def cut(metas: Sequence[GroupMeta], parts: int, seed: tuple[int, int, int]) -> list[list[Sample]]:
    """The samples that can be trained, shuffled, in `parts` of nearly equal number; fewer only if there are not as many samples."""
    samples = [(b, i) for b, meta in enumerate(metas) for i, tokens in enumerate(meta.model_tokens) if tokens and not (meta.masked and meta.masked[i])]
    order = np.random.default_rng(seed).permutation(len(samples))
    return [[samples[j] for j in part] for part in np.array_split(order, max(1, min(parts, len(samples))))]
