"""Mini-batches: a rollout batch -> the updates that it is cut into. Pure, no torch: the controller runs it.

    batch of n samples --train.max_epochs times: shuffle, cut--> parts of about train.batch_size --balance.py--> which
    rank trains what

The order is drawn from (train.seed, version, epoch), so a resumed run cuts as the other would have, and before anything
is known of ranks, so that any number of them trains the same parts. A trajectory that failed is not there to be
trained: the parts are then smaller, never fewer. A critic with updates of its own has parts of its own, cut likewise.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ..algorithms.advantages import get_estimator
from ..config import Config
from ..model_size import attention_parity
from ..types import BatchItem, GroupMeta, TrainBatch
from .balance import assign_ranks

Sample = tuple[int, int]
"""(b, i): valid trajectory i of group b."""


def train_batch(cfg: Config, version: int, items: list[BatchItem]) -> TrainBatch:
    """What the learner is given at `version`.

    A rank owns what it computes for the whole batch. That is what it trains, where the policy trains everything once
    and in several parts; else the parts of the critic, each of which is then spread evenly."""
    metas, ranks = [item.meta for item in items], cfg.shards
    parts = [
        part
        for epoch in range(cfg.train.max_epochs)
        for part in cut(metas, cfg.minibatches, (cfg.train.seed, version, epoch))
    ]
    balanced = partial(
        assign_ranks,
        metas,
        ranks,
        parity=attention_parity(cfg.actor.model_name_or_path),
        share_prompts=cfg.shares_prompts,
    )
    cuts = [balanced(part) for part in parts] if cfg.updates_per_batch > 1 else ()
    owned = (
        cuts if cuts and cfg.train.max_epochs == 1 else [balanced(part) for part in critic_parts(cfg, version, metas)]
    )
    whole = balanced() | {sample: rank for each in owned for sample, rank in each.items()}
    return TrainBatch(version, items, whole, cuts)


def critic_parts(cfg: Config, version: int, metas: Sequence[GroupMeta]) -> list[list[Sample]]:
    """What each update of the critic trains, in each of its epochs; none without a critic, or if one trains all."""
    updates = cfg.critic.updates or cfg.minibatches
    if updates == 1 or not get_estimator(cfg.algo.advantage.estimator).critic:
        return []
    return cut(metas, updates, (cfg.train.seed, version, 0))


def cut(metas: Sequence[GroupMeta], parts: int, seed: tuple[int, int, int]) -> list[list[Sample]]:
    """The samples that can be trained, shuffled, in `parts` of nearly equal number; fewer if samples are fewer."""
    samples = [
        (b, i)
        for b, meta in enumerate(metas)
        for i, tokens in enumerate(meta.model_tokens)
        if tokens and not (meta.masked and meta.masked[i])
    ]
    order = np.random.default_rng(seed).permutation(len(samples))
    return [[samples[j] for j in part] for part in np.array_split(order, max(1, min(parts, len(samples))))]
