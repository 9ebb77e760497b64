"""Our numpy advantages against OpenRLHF's own experience maker, on random groups with tool output in them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from openrlhf_tir.algorithms.advantages import ESTIMATORS, AdvantageInputs
from openrlhf_tir.algorithms.advantages.whiten import mean_and_scale, moments, whiten

B, G, T = 3, 4, 9


@pytest.fixture(scope="module")
def openrlhf_maker():
    from openrlhf_tir.learner import openrlhf_adapter  # noqa: F401  imports transformers before the stubs
    from openrlhf_tir.learner.openrlhf_imports import flash_attn_importable

    with flash_attn_importable():
        from openrlhf.trainer.ppo_utils import experience_maker
    return experience_maker


def ours(name, rewards, masks, no_std_norm):
    estimator = ESTIMATORS[name]
    adv = [
        a
        for b in range(B)
        for a in estimator.fn(AdvantageInputs(rewards[b], list(masks[b]), batch_rewards=rewards.reshape(-1)))
    ]
    flat = list(masks.reshape(B * G, T))
    mean, scale = mean_and_scale(moments(adv, flat), no_std_norm=no_std_norm) if estimator.whiten else (0.0, 1.0)
    return np.stack([whiten(a, m, mean, scale) for a, m in zip(adv, flat, strict=True)])


def theirs(maker, name, rewards, masks, no_std_norm):
    import torch

    ns = SimpleNamespace
    advantage = ns(estimator=name, gamma=1.0, lambd=1.0, no_std_norm=no_std_norm)
    args = ns(
        algo=ns(advantage=advantage), rollout=ns(n_samples_per_prompt=G, max_new_tokens=T),
        reward=ns(
            clip_range=None, overlong_buffer_len=None, stop_properly_penalty_coef=None, overlong_penalty_factor=0.0
        ),
    )  # fmt: skip
    experience = ns(
        rewards=torch.tensor(rewards.reshape(-1), dtype=torch.float32), index=list(range(B * G)), info={},
        kl=torch.zeros(B * G, T), action_mask=torch.tensor(masks.reshape(B * G, T)),
    )  # fmt: skip
    self = ns(strategy=ns(args=args), kl_ctl=ns(value=0.0), advantage_estimator=name)
    self.get_cumulative_returns = lambda *a: maker.RemoteExperienceMaker.get_cumulative_returns(self, *a)
    maker.RemoteExperienceMaker.compute_advantages_and_returns(self, [experience])
    return experience.advantages.numpy()


@pytest.mark.slow
@pytest.mark.parametrize("no_std_norm", [False, True])
@pytest.mark.parametrize("name", sorted(ESTIMATORS.keys() - {"opo", "gae"}))  # OpenRLHF has no opo; test_gae.py
def test_advantages_equal_openrlhfs_on_every_trained_token(openrlhf_maker, name, no_std_norm):
    rng = np.random.default_rng(0)
    rewards = rng.integers(0, 2, (B, G)).astype(np.float64) + rng.normal(0, 0.1, (B, G))
    masks = rng.random((B, G, T)) < 0.7
    masks[:, :, -1] = True
    expected = theirs(openrlhf_maker, name, rewards, masks, no_std_norm) * masks.reshape(B * G, T)
    assert np.allclose(ours(name, rewards, masks, no_std_norm), expected, rtol=2e-5, atol=2e-6)
