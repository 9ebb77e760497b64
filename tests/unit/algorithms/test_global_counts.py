"""The DeepSpeed loss scaling: one global token mean, however the batch is cut."""

from __future__ import annotations

import pytest

from openrlhf_tir.algorithms.global_counts import GlobalCounts

LOSSES = {0: [[3.0], [1.0, 2.0]], 1: [[6.0, 0.0, 0.0]]}
"""rank -> micro batches -> losses of trained tokens; 6 tokens, sum 12: the mean is 2."""


def deepspeed_mean(losses: dict[int, list[list[float]]]) -> float:
    """What DeepSpeed makes of the micro-batch losses: summed, averaged over ranks."""
    counts = GlobalCounts(tokens=6, sequences=4, dp_size=2)
    kw = counts.loss_kwargs()
    rank_sums = [
        sum(sum(micro) / kw["batch_num_tokens"] * kw["dp_size"] for micro in micros) for micros in losses.values()
    ]
    return sum(rank_sums) / len(rank_sums)


def test_ranks_with_different_numbers_of_tokens_give_the_global_token_mean():
    assert deepspeed_mean(LOSSES) == pytest.approx(2.0)


def test_a_mean_of_means_would_be_something_else():
    means = [sum(m) / len(m) for micros in LOSSES.values() for m in micros]
    assert sum(means) / len(means) == pytest.approx(13 / 6)


def test_the_reported_loss_undoes_the_scaling():
    counts = GlobalCounts(tokens=6, sequences=4, dp_size=2)
    handed_over = sum(sum(m) / 6 * 2 for micros in LOSSES.values() for m in micros)
    assert counts.unscale(handed_over) == pytest.approx(2.0)


def test_an_empty_batch_divides_by_no_zero():
    kw = GlobalCounts(tokens=0, sequences=0, dp_size=2).loss_kwargs()
    assert kw["batch_num_tokens"] > 0
    assert kw["global_batch_size"] > 0
