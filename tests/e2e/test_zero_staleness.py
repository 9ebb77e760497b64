"""Staleness 0: the pipeline trains number for number what a plain loop trains. Real learner, deterministic engine."""

from __future__ import annotations

import pickle

import pytest

from miniatures.toy.model import save_model

from .support.ports import store_port
from .support.ranks import run_ranks
from .support.zero_staleness_runs import STEPS, run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """results["sequential" | "asynchronous" | "colocated"] = (what the run returned, [(metrics, keys of the
    batch)])."""
    out = tmp_path_factory.mktemp("zero_staleness")
    save_model(out / "model", seed=0)
    run_ranks(run, (1, store_port(), out / "model", out))
    return pickle.loads((out / "results.pkl").read_bytes())


def test_losses_and_all_other_figures_of_every_step_are_equal_to_the_last_bit(results):
    sequential, asynchronous = ([metrics for metrics, _ in results[name][1]] for name in ("sequential", "asynchronous"))
    assert len(sequential) == STEPS
    assert asynchronous == sequential
    assert all(m["staleness_max"] == 0 and m["grad_norm"] > 0 for m in sequential)


def test_the_weights_after_every_step_are_equal_to_the_last_bit(results):
    digests = results["sequential"][0]
    assert results["asynchronous"][0][0] == digests
    assert len(set(digests)) == STEPS


def test_the_batches_hold_the_same_prompts_in_the_same_order(results):
    assert [keys for _, keys in results["asynchronous"][1]] == [keys for _, keys in results["sequential"][1]]


def test_the_test_is_not_trivial(results):
    """Groups finished out of order, the filter dropped some, and every prompt of the asynchronous run has one end."""
    _, finished, errors = results["asynchronous"][0]
    assert finished != sorted(finished)
    assert len(finished) > 3 * STEPS
    assert errors == []


def test_so_it_does_where_engine_and_learner_take_turns_on_a_gpu(results):
    """And the learner's states go before each push, and come before each step: the rank refuses one without them."""
    digests, moves = results["colocated"][0]
    assert digests == results["sequential"][0]
    assert results["colocated"][1] == results["sequential"][1]
    assert moves == ["offload", "onload"] * STEPS + ["offload"]
