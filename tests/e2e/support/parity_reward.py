"""A reward that an untrained model meets about half of the time, so that a few real steps train on something."""

from __future__ import annotations

from openrlhf_tir.types import RewardParts


def parity(trajectory, task, cfg) -> RewardParts:
    """1.0 iff the sum of the sampled token ids is even."""
    correct = int(trajectory.token_ids.sum()) % 2 == 0
    return RewardParts(float(correct), correct, {"used_code": float(len(trajectory.calls) > 0), "format_ok": 1.0})
