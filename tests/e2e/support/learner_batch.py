"""Batches for learner tests: groups with tool output in them, of given or random tokens. numpy only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openrlhf_tir.learner.balance import assign_ranks
from openrlhf_tir.types import KEEP, BatchItem, Group, GroupKey, GroupMeta, Segment, Task, TrainBatch, Trajectory


def trajectory(
    index: int, prompt: Sequence[int], segments: Sequence[tuple[str, Sequence[int], int | None]], reward: float
) -> Trajectory:
    """segments: (source, token ids, version or None for the environment). Every log-prob is -0.5."""
    made = [
        Segment(
            "model", np.array(ids, np.int32), np.full(len(ids), -0.5, np.float32), np.full(len(ids), version, np.int32)
        )
        if source == "model"
        else Segment.of_env(ids, "")
        for source, ids, version in segments
    ]
    return Trajectory(index, np.array(prompt, np.int32), made, reward=reward)


def group_of(prompt: int, prompt_ids: Sequence[int], trajectories: list[Trajectory]) -> Group:
    return Group(GroupKey(0, prompt), Task("", ""), trajectories)


def make_batch(groups: Sequence[Group], world_size: int, step: int = 0) -> TrainBatch:
    metas = []
    for group in groups:
        valid = group.valid
        metas.append(
            GroupMeta(
                group.key,
                KEEP,
                [t.index for t in valid],
                [t.reward or 0.0 for t in valid],
                [t.reward == 1.0 for t in valid],
                [True] * len(valid),
                [len(t.token_ids) for t in valid],
                [t.model_tokens for t in valid],
                len(valid[0].prompt_ids),
                min(t.oldest_version or 0 for t in valid),
            )
        )
    return TrainBatch(step, [BatchItem(m, None) for m in metas], assign_ranks(metas, world_size))


def random_groups(num_groups: int, per_group: int, seed: int, *, vocab: int = 96, version: int = 0) -> list[Group]:
    """Responses of model, tool, model tokens; lengths differ; log-probs near those of a fresh model, so that some
    ratios are clipped."""
    rng = np.random.default_rng(seed)
    groups = []
    for b in range(num_groups):
        prompt = rng.integers(2, vocab, rng.integers(4, 9)).tolist()
        trajectories = []
        for i in range(per_group):
            lengths = rng.integers(3, 14, 3)
            ids = [rng.integers(2, vocab, n).tolist() for n in lengths]
            t = trajectory(
                i,
                prompt,
                [("model", ids[0], version), ("env", ids[1], None), ("model", ids[2], version)],
                float(rng.integers(0, 2)),
            )
            for segment in t.segments:
                if segment.source == "model":
                    segment.logprobs[:] = rng.normal(-4.6, 0.3, len(segment.token_ids))
            trajectories.append(t)
        groups.append(group_of(b, prompt, trajectories))
    return groups
