"""Reference and critic around a step of the learner, on plain torch: what is asked of them, when; what they change."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.learner.minibatches import make_train_batch
from openrlhf_tir.memory.threads import Threads
from tests.e2e.support.learner_batch import make_batch, random_groups
from tests.e2e.support.tiny_model import save_tiny

pytestmark = pytest.mark.slow  # importing openrlhf, transformers and DeepSpeed takes seconds

GAE = {"advantage": {"estimator": "gae"}}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("roles") / "model", scale=1.0)


@pytest.fixture
def learner(model, monkeypatch):
    """learner(**sections) -> a Zero3Rank on plain torch."""
    import torch.distributed as dist

    from openrlhf_tir.learner import zero3

    from .plain_strategy import PlainStrategy

    monkeypatch.setattr(zero3, "ZeroStrategy", PlainStrategy)

    def start(**sections):
        base = {
            "actor": {"model_name_or_path": str(model), "learning_rate": 1e-2, "num_gpus_per_node": 1},
            "ds": {"param_dtype": "fp32", "attn_implementation": "sdpa", "zero_stage": 2},
            "rollout": {"batch_size": 4, "n_samples_per_prompt": 4},
            "train": {"micro_batch_size": 4},
        }
        return zero3.Zero3Rank(
            Config.model_validate({k: {**base.get(k, {}), **sections.get(k, {})} for k in {**base, **sections}}),
            0,
            1,
            "",
            0,
        )

    yield start
    dist.destroy_process_group()


def batch(seed: int = 0, version: int = 0):
    groups = random_groups(3, 3, seed, version=version)
    return make_batch(groups, 1, version), groups


def weights(engine) -> dict[str, np.ndarray]:
    return {name: p.detach().numpy().copy() for name, p in engine.module.named_parameters()}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(a[name], b[name]) for name in a)


def test_a_rank_on_a_cpu_computes_with_the_threads_of_the_plan(learner, monkeypatch):
    import torch

    before = torch.get_num_threads()
    monkeypatch.setattr("openrlhf_tir.learner.zero3.compute_threads", lambda cfg: Threads(learner=3, engine=1))
    try:
        learner()
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_the_critic_takes_its_own_number_of_steps_and_each_trajectory_goes_once_through_a_pass(learner):
    ranked = learner(algo=GAE, train={"max_epochs": 2}, critic={"updates": 4})
    metrics = ranked.step(*batch())
    critic = ranked.auxiliary.critic
    assert len(critic.engine.grads) == 8 and len(ranked.engine.grads) == 1
    assert metrics["critic_skipped"] == 0 and ranked.version == 1


def test_without_a_number_of_its_own_the_critic_takes_as_many_steps_as_the_policy(learner):
    cfg = {"algo": GAE, "train": {"micro_batch_size": 4, "batch_size": 4, "max_epochs": 2}}
    ranked = learner(**cfg)
    groups = random_groups(3, 3, 0)
    ranked.step(make_train_batch(ranked.cfg, 0, make_batch(groups, 1).items), groups)
    assert len(ranked.engine.grads) == len(ranked.auxiliary.critic.engine.grads) == ranked.version == 8


def test_values_are_asked_before_any_update_and_not_of_tool_output(learner):
    """The first gradient of the critic is that of (V - R)^2 / 2 with R - V the raw advantages of the values before:
    gamma = lambda = 1, R is the reward."""
    ranked = learner(algo=GAE, critic={"updates": 1, "value_clip": None})
    made, groups = batch()
    metrics = ranked.step(made, groups)
    rewards = np.concatenate([np.full(t.model_tokens, t.reward) for g in groups for t in g.trajectories])
    assert metrics["return_mean"] == pytest.approx(rewards.mean(), abs=1e-6)
    assert metrics["return_std"] == pytest.approx(rewards.std(), abs=1e-6)
    again = ranked.step(*batch())
    assert again["critic_loss"] < metrics["critic_loss"] and again["explained_variance"] > metrics["explained_variance"]


def test_a_policy_gradient_that_is_not_finite_trains_no_role(learner):
    ranked = learner(algo={**GAE, "kl": {"init_coef": 0.1, "target": 1e-3}})
    groups = random_groups(3, 3, 0)
    groups[0].trajectories[0].reward = float("nan")
    made = make_batch(groups, 1)
    before = weights(ranked.auxiliary.critic.engine)
    metrics = ranked.step(made, groups)
    assert not math.isfinite(metrics["grad_norm"]) and metrics["updates"] == 0
    # the trajectory is named, though its advantage makes those of the whole batch NaN when they are whitened
    (message,) = ranked.why_skipped()
    trajectory = rf"{groups[0].key} \w+ {groups[0].trajectories[0].index}\b"
    assert re.search(rf"advantages \w+ {trajectory}", message)
    assert re.search(rf"returns \w+ {trajectory}", message)
    assert (
        same(before, weights(ranked.auxiliary.critic.engine))
        and ranked.version == 0
        and ranked.auxiliary.coef.value == 0.1
    )


def test_a_frozen_policy_waits_for_its_critic(learner):
    ranked = learner(algo=GAE, critic={"freezing_steps": 2})
    start, critic = weights(ranked.engine), weights(ranked.auxiliary.critic.engine)
    for version in range(2):
        metrics = ranked.step(*batch(version, version))
        assert (metrics["lr"], metrics["updates"]) == (0.0, 1.0)
    assert same(start, weights(ranked.engine)) and not same(critic, weights(ranked.auxiliary.critic.engine))
    assert ranked.step(*batch(2, 2))["lr"] > 0 and not same(start, weights(ranked.engine)) and ranked.version == 3


def test_the_penalty_of_the_reward_is_of_the_policy_at_the_start_of_the_batch(learner):
    """0 while the policy is its own reference; then positive on average, and the advantages are lower by it."""
    ranked = learner(algo={"kl": {"init_coef": 0.5, "estimator": "k2"}, "advantage": {"estimator": "dr_grpo"}})
    first, second = ranked.step(*batch(0)), ranked.step(*batch(0))
    assert first["kl_ref"] == pytest.approx(0, abs=1e-6) and second["kl_ref"] > 1e-4
    assert first["kl_coef"] == second["kl_coef"] == 0.5
    assert not same(
        {n: p.detach().numpy() for n, p in ranked.auxiliary.reference.model.module.named_parameters()},
        weights(ranked.engine),
    )


def test_an_estimator_without_gamma_discounts_no_penalties_of_the_kl_either(learner):
    """As OpenRLHF, which sets gamma to 1 for it."""
    trained = []
    for gamma in (1.0, 0.5):
        ranked = learner(
            algo={
                "kl": {"init_coef": 0.5, "estimator": "k2"},
                "advantage": {"estimator": "rloo", "gamma": gamma},
            }
        )
        ranked.step(*batch(0))
        ranked.step(*batch(0))
        trained.append(weights(ranked.engine))
    assert same(*trained)


def test_kl_in_the_loss_pulls_the_policy_back(learner):
    """Without rewards the only gradient is the KL's: it falls."""
    ranked = learner(
        algo={"kl": {"init_coef": 1.0, "use_loss": True, "estimator": "k3"}}, actor={"learning_rate": 1e-3}
    )
    import torch

    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in ranked.engine.module.parameters():
            p += 0.05 * torch.randn(p.shape, generator=noise)
    made, groups = batch()
    without_rewards = [
        replace(item, meta=replace(item.meta, rewards=[0.0] * len(item.meta.rewards))) for item in made.items
    ]
    made = replace(made, items=without_rewards)
    for t in (t for g in groups for t in g.trajectories):
        for segment in t.segments:
            segment.logprobs[:] = -4.6 if segment.source == "model" else 0.0
    kl = [ranked.step(made, groups)["kl_ref"] for _ in range(6)]
    assert kl[0] > 0.01 and kl[-1] < kl[0]


def test_the_adaptive_coefficient_is_kept_and_restored(learner):
    ranked = learner(algo={"kl": {"init_coef": 0.5, "estimator": "k2", "target": 1e-6, "horizon": 90}})
    ranked.step(*batch(0))
    ranked.step(*batch(0))  # now far above the target: 1 + 0.2 * 9 / 90; before, at 0, far below: 1 - 0.02
    assert ranked.auxiliary.coef.value == pytest.approx(0.5 * 0.98 * 1.02)
    state = ranked.auxiliary.state()
    other = learner(algo={"kl": {"init_coef": 0.5, "estimator": "k2", "target": 1e-6, "horizon": 90}})
    other.auxiliary.restore(state)
    assert other.auxiliary.coef.value == ranked.auxiliary.coef.value
    fixed = learner(algo={"kl": {"init_coef": 0.7}})
    fixed.auxiliary.restore(state)
    assert fixed.auxiliary.coef.value == 0.7


def test_packed_rows_with_sdpa_give_policy_and_critic_the_gradients_of_padded_ones(learner):
    padded, packed = learner(algo=GAE), learner(algo=GAE, ds={"packing_samples": True})
    for one in (padded, packed):
        one.step(*batch())
    for a, b in ((padded.engine, packed.engine), (padded.auxiliary.critic.engine, packed.auxiliary.critic.engine)):
        for name, grad in a.grads[0].items():
            assert np.allclose(b.grads[0][name], grad, rtol=1e-3, atol=1e-4 * np.abs(grad).max() + 1e-8), name


def test_samples_that_the_first_policy_finds_improbable_are_masked_after_the_advantages(learner):
    """The perplexity is that of the weights at the start of the run, over the model's own tokens."""
    from openrlhf_tir.learner.roles.auxiliary_models import perplexity

    assert perplexity(np.log([0.5, 0.125, 1.0]), np.array([True, True, False])) == pytest.approx(4.0)
    assert perplexity(np.zeros(2), np.zeros(2, bool)) == 1.0
    free, bound = learner(), learner(filter={"max_base_ppl": 1.0001})
    made, groups = batch()
    assert free.auxiliary.reference is None and bound.auxiliary.reference is not None
    told = free.step(made, groups)
    all_improbable = bound.step(*batch())
    assert all_improbable["masked/improbable"] == 0.0, "an update needs a token"
    assert all_improbable["loss"] == pytest.approx(told["loss"], abs=1e-6)
    assert "kl_ref" not in all_improbable and "kl_coef" not in all_improbable
    ppl = sorted(s.base_ppl for s in seen(bound))
    half = learner(filter={"max_base_ppl": (ppl[4] + ppl[5]) / 2})
    metrics = half.step(*batch())
    assert metrics["masked/improbable"] == pytest.approx(4 / 9)
    assert not same(weights(half.engine), weights(bound.engine)), "four of nine were not trained"


def test_a_part_of_a_batch_is_masked_as_the_batch_is_though_nothing_of_the_part_is_left(learner):
    """Early accumulation: another part has what the update trains."""
    ranked = learner(filter={"max_base_ppl": 1.0001})
    samples = samples_of(ranked)
    scored, metrics = ranked.auxiliary.score_samples(samples[:3], is_part=True)
    assert all(s.masked for s in scored) and metrics["masked/improbable"] == 1.0
    rest = [replace(s, masked=False) for s in samples[3:]]
    assert ranked.auxiliary.masked_share([*scored, *rest]) == {"masked/improbable": pytest.approx(3 / 9)}


def test_a_batch_in_parts_is_masked_and_trained_as_in_one_though_nothing_of_a_part_is_left(learner):
    algo = {"advantage": {"estimator": "rloo"}}
    least = {}  # the lowest perplexity of each group
    for s in seen(learner(algo=algo, filter={"max_base_ppl": 1e9})):
        group, _, _ = s.key
        least[group] = min(s.base_ppl, least.get(group, math.inf))
    bound = {"max_base_ppl": max(least.values()) * (1 - 1e-6)}
    whole, parts = learner(algo=algo, filter=bound), learner(algo=algo, filter=bound)
    (made, groups), expected = batch(), whole.step(*batch())
    for b in range(3):
        part = make_train_batch(parts.cfg, 0, made.items[b : b + 1]), groups[b : b + 1]
        metrics = parts.step(*part) if b == 2 else parts.accumulate(*part)
    assert metrics["masked/improbable"] == expected["masked/improbable"] >= 3 / 9
    assert metrics["trained_tokens"] == expected["trained_tokens"]
    (in_one,), (in_parts,) = whole.engine.grads, parts.engine.grads
    for name, grad in in_one.items():
        np.testing.assert_allclose(in_parts[name], grad, rtol=1e-3, atol=1e-6, err_msg=name)


def seen(ranked):
    """The samples of the batch with what the reference says of them."""
    return ranked.auxiliary.score_samples(samples_of(ranked))[0]


def samples_of(ranked):
    from openrlhf_tir.learner.rows import batch_samples

    made, groups = batch()
    return batch_samples(made, groups, ranked.cfg, ranked.estimator)
