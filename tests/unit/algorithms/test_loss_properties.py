"""What a policy loss declares about itself is what its function does."""

from __future__ import annotations

import pytest
import torch

from openrlhf_tir.algorithms.losses import LOSSES
from openrlhf_tir.algorithms.losses.base import LossInputs
from openrlhf_tir.config import Config


def evaluate(fn, *, old: float, clip: tuple[float, float]) -> float:
    """Return the loss of a token of log-prob -0.5 and advantage 1 whose pi_old has log-prob `old`."""
    token = torch.zeros(1, 1, requires_grad=True)
    ones = torch.ones(1, 1)
    loss = fn(LossInputs(token - 0.5, old * ones, 0 * ones, ones, ones, clip))
    return float(loss.detach())


@pytest.mark.parametrize("name", [name for name, loss in LOSSES.items() if loss.fn is not None])
def test_a_loss_reads_pi_old_and_the_clip_range_if_it_declares_a_ratio_and_only_then(name):
    loss = LOSSES[name]
    narrow, wide = (evaluate(loss.fn, old=-3.0, clip=clip) for clip in ((0.1, 0.1), (0.1, 5.0)))
    fresh, stale = (evaluate(loss.fn, old=old, clip=(0.9, 5.0)) for old in (-0.5, -1.5))
    assert (narrow != wide) is loss.has_ratio
    assert (fresh != stale) is loss.has_ratio


def test_beside_a_mean_over_sequences_the_other_terms_keep_the_default_aggregation():
    assert {name for name, loss in LOSSES.items() if loss.over_sequences} == {"gspo"}
    for name, loss in LOSSES.items():
        cfg = Config(actor={"policy_loss_type": name, "loss_agg_mode": "seq-mean-token-sum-norm"})
        assert (cfg.loss_agg_mode, cfg.loss_sum_norm) == (
            ("token-mean", None)
            if loss.over_sequences
            else ("seq-mean-token-sum-norm", float(cfg.rollout.max_new_tokens))
        )


def test_losses_of_openrlhf_take_the_dual_clip_and_ours_do_not():
    assert {name for name, loss in LOSSES.items() if loss.has_dual_clip} == {"ppo", "gspo"}
