"""A batch that real ZeRO-3 ranks train in parts, against the same batch in one step.

Everything runs in tests/e2e/support/early_runs.py."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest

from openrlhf_tir.weights.digest import digest_file

from ..support.early_runs import METHODS, run
from ..support.ports import store_port
from ..support.ranks import run_ranks
from ..support.tiny_model import save_tiny

pytestmark = pytest.mark.extended
WORLDS = (1, 2)
BF16 = 0.1
"""Of the way that the weights moved: micro batches that are cut elsewhere round differently in 8 bits."""


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    out = tmp_path_factory.mktemp("early")
    save_tiny(out / "model", scale=1.0)
    return out


@pytest.fixture(scope="module")
def results(workdir):
    """results[world][rank]; both sizes run at the same time."""
    run_ranks(run, *((world, store_port(), workdir / "model", workdir) for world in WORLDS))
    return {w: [pickle.loads((workdir / f"early-{w}-{r}.pkl").read_bytes()) for r in range(w)] for w in WORLDS}


def apart(a: dict[str, np.ndarray], b: dict[str, np.ndarray], of: dict[str, np.ndarray]) -> float:
    """Of how much of what was moved from `of` to `b`, `a` is elsewhere: relative L2 of all weights together."""
    ours, theirs, start = (np.concatenate([x[k].astype(np.float64).ravel() for k in sorted(x)]) for x in (a, b, of))
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs - start))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("method", METHODS)
def test_parts_make_the_update_of_the_whole_batch_on_one_rank(results, workdir, method, world):
    whole, weights, version = results[1][0]["methods"][method]["whole"]
    metrics, in_parts, now = results[world][0]["methods"][method]["each"]
    assert version == now == 2
    bf16 = "bf16" in method
    for one, several in zip(whole, metrics, strict=True):
        assert several == pytest.approx(one, rel=2e-2 if bf16 else 2e-4, abs=1e-5)
        assert one["grad_norm"] > 0
    assert apart(in_parts, weights, _start(workdir, weights)) < (BF16 if bf16 else 2e-3)


@pytest.mark.parametrize("world", WORLDS)
def test_between_parts_the_weights_are_those_before_and_can_be_scored_pushed_and_saved(results, workdir, world):
    found = results[world][0]
    digest, version, scores = found["between"]
    assert (digest, version) == (found["plain_start"], 0)
    assert found["published"] == digest_file(workdir / f"between-{world}.safetensors") == digest
    assert all(np.isfinite(s).all() for s in scores)
    assert apart(found["went_on"], found["whole"], _start(workdir, found["whole"])) < 2e-3
    assert found["from_between"]


@pytest.mark.parametrize("world", WORLDS)
def test_what_was_accumulated_is_void_after_a_load_and_after_a_failure(results, world):
    for found in results[world]:
        assert found["void_after_load"]
        assert (found["failed"], found["void_after_a_failure"]) == ("DataError", True)


@pytest.mark.parametrize("world", WORLDS)
def test_a_step_is_taken_though_its_own_part_has_nothing_to_train(results, workdir, world):
    whole, in_parts = results[world][0]["nothing_last"]
    assert apart(in_parts, whole, _start(workdir, whole)) < 2e-3


@pytest.mark.parametrize("world", WORLDS)
def test_a_part_that_is_not_finite_is_named_and_the_batch_changes_nothing(results, world):
    found = results[world][0]
    updates, digest, why, version = found["not_finite"]
    assert (updates, digest, version) == (0, found["plain_start"], 0)
    of_first_part, of_second_part = why
    assert not re.search(r"\d/\d/\d", of_first_part), "no sample is at fault"
    assert re.search(r"\badvantages\b.* 0/3/0 \w+ 1\b", of_second_part)
    assert found["after_not_finite"]


def test_an_estimator_that_needs_the_whole_batch_is_refused(results):
    refusal = results[1][0]["refused"]
    assert "reinforce_baseline" in refusal
    assert "pipeline.early_accumulation" in refusal


def _start(workdir, like):
    from safetensors.numpy import load_file

    start = load_file(workdir / "model" / "model.safetensors")
    return {k: start[k] for k in like}
