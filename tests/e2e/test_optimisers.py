"""Muon and AdamW on real DeepSpeed ranks: each setting changes the weights that it is about. Everything runs in
tests/e2e/support/optimiser_runs.py."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from .support.optimiser_runs import run
from .support.ports import store_port
from .support.ranks import run_ranks
from .support.tiny_model import save_tiny

pytestmark = pytest.mark.long
MATRIX, EMBEDDING, NORM = "model.layers.0.mlp.down_proj.weight", "model.embed_tokens.weight", "model.norm.weight"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """results[world], of rank 0; both sizes run at the same time."""
    out = tmp_path_factory.mktemp("optimisers")
    model = save_tiny(out / "model", scale=1.0)
    run_ranks(run, *((world, store_port(), model, out) for world in (1, 2)))
    return {world: pickle.loads((out / f"results-{world}-0.pkl").read_bytes()) for world in (1, 2)}


@pytest.fixture(params=[1, 2])
def made(results, request):
    return results[request.param]


def moved(made, variant: str, name: str = MATRIX, step: int = 1) -> np.ndarray:
    weights = made["weights"][variant]
    return weights[step][name] - weights[step - 1][name]


def test_muon_moves_a_matrix_by_an_orthogonal_one_and_adam_does_not(made):
    """Newton-Schulz brings singular values near 1 (0.7 to 1.2); DeepSpeed scales by the root of rows over columns where
    that is above 1."""
    scale = max(1.0, moved(made, "muon").shape[0] / moved(made, "muon").shape[1]) ** 0.5
    singular = np.linalg.svd(moved(made, "muon"), compute_uv=False) / (0.02 * scale)
    assert 0.6 < np.median(singular) < 1.3 and singular.max() < 1.4
    of_adam = np.linalg.svd(moved(made, "adam"), compute_uv=False)
    assert of_adam.max() / np.median(of_adam) > 2


def test_what_is_no_matrix_between_embedding_and_head_has_adam_at_its_own_rate(made):
    for name in (EMBEDDING, NORM):
        np.testing.assert_allclose(moved(made, "muon", name), moved(made, "adam", name), rtol=0.02, atol=2e-6)
        np.testing.assert_allclose(moved(made, "adam_lr", name), 2 * moved(made, "muon", name), rtol=0.02, atol=2e-6)
    np.testing.assert_allclose(moved(made, "adam_lr"), moved(made, "muon"), atol=1e-6)


def test_the_rate_of_muon_is_its_own(made):
    np.testing.assert_allclose(moved(made, "lr"), 2 * moved(made, "muon"), rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(moved(made, "lr", EMBEDDING), moved(made, "muon", EMBEDDING), rtol=1e-3, atol=1e-6)


def test_fewer_steps_of_newton_schulz_leave_it_less_orthogonal(made):
    spread = [np.std(np.linalg.svd(moved(made, variant), compute_uv=False)) / 0.02 for variant in ("muon", "ns_steps")]
    assert spread[1] > 1.5 * spread[0]


@pytest.mark.parametrize("variant", ["momentum", "no_nesterov"])
def test_momentum_and_nesterov_change_the_second_step(made, variant):
    """The first is the same whatever they are: the momentum is the gradient's direction."""
    apart = [
        np.linalg.norm(moved(made, variant, step=n) - moved(made, "muon", step=n))
        / np.linalg.norm(moved(made, "muon", step=n))
        for n in (1, 2)
    ]
    assert apart[0] < 0.05 and apart[1] > 0.1


def test_one_rank_and_two_make_the_same_update(results):
    for name in (MATRIX, EMBEDDING):
        np.testing.assert_allclose(moved(results[1], "muon", name), moved(results[2], "muon", name), atol=2e-3)


def test_a_resumed_run_goes_on_with_its_momentum(made):
    on, resumed = made["resumed"]
    assert on == resumed


def test_the_critic_may_have_muon_beside_a_policy_with_adam(made):
    (policy, critic), (policy_after, critic_after) = made["critic"]
    of_policy, of_critic = (
        np.linalg.svd(after[MATRIX] - before[MATRIX], compute_uv=False)
        for before, after in ((policy, policy_after), (critic, critic_after))
    )
    assert of_critic.max() / np.median(of_critic) < 2 < of_policy.max() / np.median(of_policy)


def test_a_deterministic_learner_uses_deterministic_kernels_and_repeats_itself(made):
    before, first_on, first, second_on, second = made["deterministic"]
    assert (before, first_on, second_on) == (False, True, True) and first == second
