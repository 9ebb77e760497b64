"""Two ranks that hold a half each of every packed row, against one that holds it whole: the same numbers."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from ..support.ports import store_port
from ..support.ranks import run_ranks
from ..support.sequence_parallel_runs import VARIANTS, run
from ..support.tiny_model import save_tiny

pytestmark = pytest.mark.extended
CUTS = ((1, 1), (2, 2))
"""Ranks, and how many of them share a row."""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """results[ranks][rank]; both run at the same time."""
    out = tmp_path_factory.mktemp("sequence_parallel")
    save_tiny(out / "model", scale=1.0)
    run_ranks(run, *((world, cut, store_port(), out / "model", out) for world, cut in CUTS))
    return {
        world: [pickle.loads((out / f"{world}-{cut}-{rank}.pkl").read_bytes()) for rank in range(world)]
        for world, cut in CUTS
    }


def relative_l2(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    assert got.keys() == expected.keys()
    difference = sum(float(np.square(got[name] - expected[name]).sum()) for name in expected)
    return (difference / sum(float(np.square(g).sum()) for g in expected.values())) ** 0.5


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_ranks_that_share_rows_have_the_gradient_of_one(results, variant):
    (whole, metrics), (cut, cut_metrics) = results[1][0][variant], results[2][0][variant]
    assert relative_l2(cut, whole) <= 1e-5
    assert cut_metrics == pytest.approx(metrics, rel=1e-4, abs=1e-6)
    assert results[2][1][variant][1] == cut_metrics
    assert metrics["trained_tokens"] > 0


def test_fine_tuning_has_the_gradient_and_loss_of_one_rank(results):
    # from weights that an Adam step has moved apart
    assert relative_l2(results[2][0]["sft"], results[1][0]["sft"]) <= 1e-4
    for got, expected in zip(results[2][0]["sft_metrics"], results[1][0]["sft_metrics"], strict=True):
        assert got == pytest.approx(expected, rel=1e-4)


def test_both_ranks_hold_the_same_weights_and_score_like_one(results):
    first, second = results[2]
    assert first["weights"] == second["weights"]
    for rank in results[2]:
        for got, expected in zip(rank["scores"], results[1][0]["scores"], strict=True):
            assert np.allclose(got, expected, atol=1e-5)
