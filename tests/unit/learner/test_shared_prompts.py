"""A learner that computes a shared prompt once takes the same step as one that computes it for every response."""

from __future__ import annotations

import numpy as np
import pytest

from openrlhf_tir.config import Config
from tests.e2e.support.learner_batch import make_batch, random_groups
from tests.e2e.support.tiny_model import save_tiny

pytestmark = pytest.mark.slow  # importing openrlhf, transformers and DeepSpeed takes seconds

GROUPS = 3
SAMPLES = 4
VARIANTS = {
    "policy gradient alone": {},
    "entropy bonus": {"actor": {"entropy_coef": 0.01}},
    "KL to the reference in the loss": {"algo": {"kl": {"init_coef": 0.1, "use_loss": True}}},
    "two updates, with the old policy's log-probs": {
        "actor": {"pi_old": "learner"},
        "train": {"batch_size": GROUPS * SAMPLES // 2},
    },
    "trained environment tokens": {"train": {"env_mask_from": "never"}},
    "recomputed activations": {"actor": {"gradient_checkpointing_enable": True}},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("shared") / "model", scale=1.0)


@pytest.fixture
def learner(model, monkeypatch):
    """learner(share_prompts, sections) -> a Zero3Rank on plain torch."""
    import torch.distributed as dist

    from openrlhf_tir.learner import zero3

    from .plain_strategy import PlainStrategy

    monkeypatch.setattr(zero3, "ZeroStrategy", PlainStrategy)

    def start(share_prompts: bool, sections: dict) -> zero3.Zero3Rank:
        base = {
            "actor": {"model_name_or_path": str(model), "learning_rate": 1e-2, "num_gpus_per_node": 1},
            "ds": {
                "param_dtype": "fp32",
                "attn_implementation": "sdpa",
                "zero_stage": 2,
                "packing_samples": True,
                "share_prompts": share_prompts,
            },
            "rollout": {"batch_size": GROUPS, "n_samples_per_prompt": SAMPLES},
            "train": {"max_tokens_per_gpu": 100},
        }
        names = {*base, *sections}
        merged = {name: {**base.get(name, {}), **sections.get(name, {})} for name in names}
        return zero3.Zero3Rank(Config.model_validate(merged), 0, 1, "", 0)

    yield start
    if dist.is_initialized():
        dist.destroy_process_group()


def computed_tokens(learner) -> int:
    """Tokens that the learner's forward passes run the model on in one step."""
    learner.model.row_multiple = 1  # a row's filling is not counted
    counted = []
    learner.engine.register_forward_pre_hook(lambda module, args: counted.append(args[0].numel()))
    groups = random_groups(GROUPS, SAMPLES, seed=1)
    learner.step(make_batch(groups, 1), groups)
    return sum(counted)


@pytest.mark.parametrize("variant", VARIANTS)
def test_metrics_and_gradients_are_those_without_sharing(learner, variant):
    groups = random_groups(GROUPS, SAMPLES, seed=0)
    batch = make_batch(groups, 1)
    separate = learner(False, VARIANTS[variant])
    expected_metrics = separate.step(batch, groups)
    shared = learner(True, VARIANTS[variant])
    assert shared.model.can_share_prompts
    metrics = shared.step(batch, groups)
    assert metrics == pytest.approx(expected_metrics, rel=1e-4, abs=1e-6)
    (gradients, *_), (expected, *_) = shared.engine.grads, separate.engine.grads
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        scale = np.abs(expected[name]).max()
        assert np.abs(gradient - expected[name]).max() <= 1e-4 * scale + 1e-9, name


def test_a_prompt_is_computed_once(learner):
    groups = random_groups(GROUPS, SAMPLES, seed=1)
    prompt_tokens = [len(group.trajectories[0].prompt_ids) for group in groups]
    saved = sum((tokens - 1) * (SAMPLES - 1) for tokens in prompt_tokens)
    sections = {"train": {"max_tokens_per_gpu": 10_000}}
    assert computed_tokens(learner(False, sections)) - computed_tokens(learner(True, sections)) == saved


def test_rows_of_any_length_are_filled_up_so_that_few_shapes_are_compiled(learner):
    from openrlhf_tir.learner.openrlhf_adapter import CPU_ROW_MULTIPLE

    lengths = set()
    filled = learner(True, {})
    filled.engine.register_forward_pre_hook(lambda module, args: lengths.add(args[0].shape[1]))
    for seed in range(3):
        groups = random_groups(GROUPS, SAMPLES, seed)
        filled.step(make_batch(groups, 1), groups)
    assert filled.model.row_multiple == CPU_ROW_MULTIPLE
    assert {length % CPU_ROW_MULTIPLE for length in lengths} == {0}
