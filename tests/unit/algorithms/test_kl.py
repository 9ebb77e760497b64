"""KL estimators, their gradients and the adaptive coefficient, against sums over a small vocabulary in float64."""

from __future__ import annotations

import math
from importlib import import_module

import numpy as np
import pytest

from openrlhf_tir.algorithms import kl as kls

LOGITS, REFERENCE, ROLLOUT = (0.3, -0.9, 1.1, 0.0), (0.0, 0.4, 0.2, -1.0), (0.5, -0.5, 0.8, 0.1)


def log_softmaxes(requires_grad: bool = True):
    import torch

    logits = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=requires_grad)
    return (
        logits,
        logits.log_softmax(-1),
        *(torch.tensor(x, dtype=torch.float64).log_softmax(-1) for x in (REFERENCE, ROLLOUT)),
    )


def gradient_of(expression_of) -> np.ndarray:
    logits, pi, ref, mu = log_softmaxes()
    expression_of(pi, ref, mu).backward()
    return logits.grad.numpy()


def reverse_kl(pi, ref, mu):
    return (pi.exp() * (pi - ref)).sum()


def expected_loss(estimator: str, unbiased: bool, sampler: str):
    """Of one token drawn by the sampler, whose probabilities take no gradient: what an average of many tends to."""

    def of(pi, ref, mu):
        rollout = {"pi": pi.detach(), "mu": mu}[sampler]
        return (rollout.exp() * kls.loss(pi, ref, rollout, estimator, unbiased=unbiased)).sum()

    return of


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_are_unbiased_on_policy(estimator):
    _, pi, ref, _ = log_softmaxes(False)
    mean = (pi.exp() * kls.estimate(pi - ref, estimator)).sum()
    assert mean.item() == pytest.approx(reverse_kl(pi, ref, None).item(), abs=1e-12)


def test_each_estimator_by_hand():
    import torch

    half = torch.tensor([0.5, -0.5], dtype=torch.float64)
    assert kls.estimate(half, "k1").tolist() == [0.5, -0.5]
    assert kls.estimate(half, "k2").tolist() == [0.125, 0.125]
    assert kls.estimate(half, "k3").tolist() == pytest.approx([math.exp(-0.5) - 0.5, math.exp(0.5) - 1.5])
    far = torch.tensor([-1e4, 1e4], dtype=torch.float64)
    assert [kls.estimate(far, k).tolist() for k in ("k1", "k2", "k3")] == [[-10, 10], [10, 10], [10, 10]]


def test_k2_in_the_loss_has_the_gradient_of_k1_in_the_reward():
    """REINFORCE of the reward -k1: -E[-l * grad log pi]. Both are the gradient of KL(pi || ref)."""
    in_reward = gradient_of(lambda pi, ref, mu: (pi.detach().exp() * (pi - ref).detach() * pi).sum())
    in_loss = gradient_of(expected_loss("k2", False, "pi"))
    exact = gradient_of(reverse_kl)
    assert in_loss == pytest.approx(in_reward, abs=1e-12)
    assert in_loss == pytest.approx(exact, abs=1e-12)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_only_k1_in_the_reward_holds_a_policy_that_is_near_its_reference(estimator):
    """Preflight remarks on the others: a hundredth of a step away their gradient is not a twentieth of the KL's."""
    import torch

    ref = torch.tensor(REFERENCE, dtype=torch.float64).log_softmax(-1)

    def gradient(of) -> float:
        logits = (ref + 0.01 * torch.tensor(LOGITS, dtype=torch.float64)).requires_grad_()
        of(logits.log_softmax(-1)).backward()
        return logits.grad.norm().item()

    def in_reward(k: str) -> float:
        return gradient(lambda pi: (pi.detach().exp() * kls.estimate((pi - ref).detach(), k) * pi).sum())

    exact = gradient(lambda pi: reverse_kl(pi, ref, None))
    assert in_reward("k1") == pytest.approx(exact)
    assert in_reward(estimator) < exact / 20


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("sampler", ["pi", "mu"])
def test_the_unbiased_gradient_is_that_of_the_divergence_whoever_sampled(estimator, sampler):
    assert gradient_of(expected_loss(estimator, True, sampler)) == pytest.approx(gradient_of(reverse_kl), abs=1e-12)


def test_the_gradient_through_the_formula_of_k1_is_nothing_and_that_of_k3_is_the_forward_divergences():
    assert gradient_of(expected_loss("k1", False, "pi")) == pytest.approx(np.zeros(4), abs=1e-12)
    forward = gradient_of(lambda pi, ref, mu: (ref.exp() * (ref - pi)).sum())
    assert gradient_of(expected_loss("k3", False, "pi")) == pytest.approx(forward, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("unbiased", [True, False])
def test_values_and_gradients_are_openrlhfs(estimator, unbiased):
    import torch

    from openrlhf_tir.learner import openrlhf_adapter  # noqa: F401  it makes openrlhf importable

    compute_approx_kl = import_module("openrlhf.models.utils").compute_approx_kl
    found = []
    for fn in (
        lambda pi, ref, mu: kls.loss(pi, ref, mu, estimator, unbiased=unbiased),
        lambda pi, ref, mu: compute_approx_kl(pi, ref, mu, kl_estimator=estimator, unbiased_gradient=unbiased),
    ):
        pi = torch.tensor([-1.0, -2.0, -3.0, -30.0], requires_grad=True)
        value = fn(pi, torch.tensor([-1.5, -1.0, -3.0, -2.0]), torch.tensor([-1.1, -2.5, -3.0, -40.0]))
        value.sum().backward()
        found.append([*value.tolist(), *pi.grad.tolist()])
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_a_reward_pays_for_the_divergence_of_its_own_and_later_tokens_of_the_policy():
    kl, own = np.array([0.5, 9.0, 1.0, 2.0]), np.array([True, False, True, True])
    # -0.1 * (2), -0.1 * (1 + 0.5 * 2), -0.1 * (0.5 + 0.25 * (1 + 0.5 * 2)): two positions back across the tool's token
    assert kls.penalty_to_go(kl, own, 0.1, 0.5) == pytest.approx([-0.1, 0.0, -0.2, -0.2])
    assert kls.penalty_to_go(kl, own, 0.1, 1.0) == pytest.approx([-0.35, 0.0, -0.3, -0.2])


def test_the_coefficient_follows_its_target_by_at_most_a_fifth_per_horizon():
    fixed = kls.Coefficient(0.1)
    fixed.update(5.0, 1000)
    assert fixed.value == 0.1
    adaptive = kls.Coefficient(0.1, target=0.02, horizon=1000)
    adaptive.update(0.021, 100)  # 5 % above: 1 + 0.05 * 100 / 1000
    assert adaptive.value == pytest.approx(0.1005)
    adaptive.update(1.0, 100)  # far above: a fifth
    assert adaptive.value == pytest.approx(0.1005 * 1.02)
    adaptive.update(0.0, 100)
    assert adaptive.value == pytest.approx(0.1005 * 1.02 * 0.98)
