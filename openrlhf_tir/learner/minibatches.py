"""Cut a rollout batch into the mini-batches of its updates. No torch: the controller runs it.

    batch of n samples -> [train.max_epochs times: shuffle, cut into parts of about train.batch_size]
                       -> [balance.py: which rank trains what] -> TrainBatch

The shuffle depends on (train.seed, version, epoch) only. So a resumed run makes the same parts as an uninterrupted one,
and any number of ranks trains the same parts. Failed trajectories are left out before the cut: the parts get smaller,
but their number stays. A critic with its own number of updates has its own parts, cut in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ..algorithms.advantages import get_estimator
from ..config import Config
from ..memory.model_size import attention_parity
from ..types import BatchItem, GroupMeta, TrainBatch
from .balance import assign_ranks

Sample = tuple[int, int]
"""(b, i): the i-th valid trajectory of group b."""


def make_train_batch(cfg: Config, version: int, items: list[BatchItem]) -> TrainBatch:
    """Build the learner's batch: the groups, and which rank trains which trajectory in which update.

    Besides the updates, a rank *owns* some trajectories of the batch: it computes their critic values and reference
    log-probs. Where the policy trains every sample once, in several updates, a rank owns what it trains. Otherwise
    ownership follows the critic's parts, so that each of those is balanced; trajectories in neither are balanced over
    the whole batch.

    Args:
        cfg: The configuration.
        version: Learner version at the start of the batch.
        items: The groups' metadata and payload references.
    """
    metas = [item.meta for item in items]
    parts = [
        part
        for epoch in range(cfg.train.max_epochs)
        for part in cut(metas, cfg.minibatches, (cfg.train.seed, version, epoch))
    ]
    balance = partial(
        assign_ranks,
        metas,
        cfg.shards,
        parity=attention_parity(cfg.actor.model_name_or_path),
        share_prompts=cfg.shares_prompts,
    )
    updates = [balance(part) for part in parts] if cfg.updates_per_batch > 1 else ()
    if updates and cfg.train.max_epochs == 1:
        owners = updates
    else:
        owners = [balance(part) for part in critic_parts(cfg, version, metas)]
    rank_of = balance() | {sample: rank for part in owners for sample, rank in part.items()}
    return TrainBatch(version, items, rank_of, updates)


def critic_parts(cfg: Config, version: int, metas: Sequence[GroupMeta]) -> list[list[Sample]]:
    """Return the samples of each update that the critic makes in one of its epochs.

    The list is empty if there is no critic, or if it makes one update of the whole batch.
    """
    updates = cfg.critic.updates or cfg.minibatches
    if updates == 1 or not get_estimator(cfg.algo.advantage.estimator).critic:
        return []
    return cut(metas, updates, (cfg.train.seed, version, 0))


def cut(metas: Sequence[GroupMeta], parts: int, seed: tuple[int, int, int]) -> list[list[Sample]]:
    """Shuffle the samples that can be trained and cut them into `parts` parts of nearly equal size.

    A sample can be trained if it has tokens of the policy and is not masked. If there are fewer samples than parts,
    each is a part of its own.

    Args:
        metas: Metadata of the batch's groups.
        parts: Number of parts.
        seed: (train.seed, version, epoch).
    """
    samples = [
        (b, i)
        for b, meta in enumerate(metas)
        for i, tokens in enumerate(meta.model_tokens)
        if tokens and not (meta.masked and meta.masked[i])
    ]
    order = np.random.default_rng(seed).permutation(len(samples))
    return [[samples[j] for j in part] for part in np.array_split(order, max(1, min(parts, len(samples))))]
