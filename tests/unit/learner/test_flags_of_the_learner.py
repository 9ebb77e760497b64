"""Settings that OpenRLHF has too, by their effect on a learner on plain torch: passes without gradients, recomputed
activations, mixtures of experts."""

from __future__ import annotations

import numpy as np
import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.learner.packing import Row
from tests.e2e.support.learner_batch import make_batch, random_groups
from tests.e2e.support.tiny_model import make_tokenizer, save_tiny

pytestmark = pytest.mark.slow  # importing openrlhf, transformers and DeepSpeed takes seconds


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("flags") / "model", scale=1.0)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """A model of two layers whose feed-forward parts are four experts, two for each token."""
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    directory, tokenizer = tmp_path_factory.mktemp("flags") / "mixture", make_tokenizer()
    torch.manual_seed(0)
    made = Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, moe_intermediate_size=32,
            num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=16, num_experts=4,
            num_experts_per_tok=2, tie_word_embeddings=False, eos_token_id=tokenizer.eos_token_id,
        )
    )  # fmt: skip
    made.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


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
    if dist.is_initialized():
        dist.destroy_process_group()


def batch(seed: int = 0):
    groups = random_groups(3, 3, seed)
    return make_batch(groups, 1), groups


ROWS = [Row(np.arange(2, 2 + n)) for n in (5, 5, 6, 7, 8, 8, 9, 20)]


@pytest.mark.parametrize(
    ("rollout", "asked"),
    [
        ({}, [4, 4]),
        ({"micro_batch_size": 8}, [8]),
        ({"micro_batch_size": 1}, [1] * 8),
        ({"micro_batch_size": 8, "max_tokens_per_gpu": 40}, [2, 5, 1]),
    ],
)
def test_passes_without_gradients_have_their_own_bounds_and_those_with_keep_theirs(learner, rollout, asked):
    ranked = learner(rollout=rollout)
    micro_batches = ranked.runner.micro_batches
    assert [len(indices) for indices, _ in micro_batches(ranked.model, ROWS, {})] == [4, 4]
    assert [len(indices) for indices, _ in micro_batches(ranked.model, ROWS, {}, scoring=True)] == asked


def test_their_bounds_change_no_log_prob(learner):
    sequences = [row.token_ids.tolist() for row in ROWS]
    one, eight = (learner(rollout={"micro_batch_size": n}).score(sequences) for n in (1, 8))
    for a, b in zip(one, eight, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_recomputed_activations_give_equal_gradients(learner):
    plain = learner()
    plain.step(*batch())
    ranked = learner(actor={"gradient_checkpointing_enable": True})
    used = {layer._gradient_checkpointing_func.keywords["use_reentrant"] for layer in ranked.engine.module.model.layers}
    ranked.step(*batch())
    assert used == {False}
    (expected,), (found,) = plain.engine.grads, ranked.engine.grads
    assert found.keys() == expected.keys()
    for name, grad in expected.items():
        np.testing.assert_allclose(found[name], grad, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("mib", [0, 1])
def test_logits_are_kept_for_the_backward_pass_where_memory_is_given_for_them_with_equal_gradients(learner, mib):
    import torch

    ranked, logits = learner(ds={"keep_logits_mib": mib}), []

    def save(x):
        logits.extend([x.numel()] * (x.ndim == 2 and x.shape[-1] == ranked.model.hf_config.vocab_size))
        return x

    with torch.autograd.graph.saved_tensors_hooks(save, lambda x: x):
        ranked.step(*batch())
    assert bool(logits) == bool(mib)
    plain = learner()
    plain.step(*batch())
    (expected,), (found,) = plain.engine.grads, ranked.engine.grads
    for name, grad in expected.items():
        np.testing.assert_array_equal(found[name], grad, err_msg=name)


def test_experts_are_computed_as_asked_for_with_the_same_log_probs(learner, mixture):
    sequences = [row.token_ids.tolist() for row in ROWS]
    scored = {}
    for how in ("eager", "batched_mm", None):
        ranked = learner(actor={"model_name_or_path": str(mixture)}, ds={"experts_implementation": how})
        assert ranked.model.hf_config._experts_implementation == (how or "grouped_mm")
        scored[how] = ranked.score(sequences)
    for other in ("batched_mm", None):
        for a, b in zip(scored["eager"], scored[other], strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


def test_the_balancing_loss_reaches_the_router_and_weighs_what_it_is_asked_to(learner, mixture):
    """The router's gradient is the policy loss's and, in proportion to the coefficient, the balancing loss's."""
    import torch

    def routers(**sections):
        ranked = learner(**{**sections, "actor": {"model_name_or_path": str(mixture), **sections.get("actor", {})}})
        ranked.step(*batch())
        (grads,) = ranked.engine.grads
        return torch.cat(
            [torch.from_numpy(g).flatten() for name, g in grads.items() if name.endswith("mlp.gate.weight")]
        )

    none, some, twice = (routers(actor={"aux_loss_coef": coef}) for coef in (0.0, 0.5, 1.0))
    assert (some - none).norm() > 1e-3
    torch.testing.assert_close(twice - none, 2 * (some - none), rtol=1e-3, atol=1e-6)
    divided = {"loss_agg_mode": "seq-mean-token-sum-norm", "loss_agg_constant": 1000.0}
    alone, both = (routers(actor={"aux_loss_coef": coef, **divided}) for coef in (0.0, 0.5))
    # whatever the policy's loss is divided by
    torch.testing.assert_close(both - alone, some - none, rtol=1e-2, atol=1e-5)


def test_a_balancing_loss_for_a_model_without_experts_is_refused(learner):
    with pytest.raises(ConfigError, match=r"actor\.aux_loss_coef = 0\.5 .*Qwen2ForCausalLM"):
        learner(actor={"aux_loss_coef": 0.5})


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    """A model whose first layer carries a state along the row."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    directory, tokenizer = tmp_path_factory.mktemp("flags") / "hybrid", make_tokenizer()
    shape = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
    }
    linear = {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    }
    layers = ["linear_attention", "full_attention"]
    Qwen3_5ForCausalLM(
        Qwen3_5TextConfig(vocab_size=len(tokenizer), layer_types=layers, **shape, **linear)
    ).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.mark.parametrize("role", ["actor", "critic"])
def test_a_model_that_carries_a_state_along_the_row_is_not_packed(learner, hybrid, role):
    sections = {
        role: {"model_name_or_path": str(hybrid)},
        "algo": {"advantage": {"estimator": "gae" if role == "critic" else "rloo"}},
    }
    with pytest.raises(ConfigError, match=r"linear_attention.*ds\.packing_samples"):
        learner(**sections, ds={"packing_samples": True})


def muon_config(**muon) -> Config:
    return Config(
        actor={"optim": "muon", "learning_rate": 1e-3, "muon": muon}, ds={"param_dtype": "fp32", "zero_stage": 3}
    )


def test_deepspeed_is_told_of_muon_as_it_needs_it(monkeypatch):
    """Rates of both halves, no clip behind the orthogonalised update, and whole gradients on every rank."""
    from openrlhf_tir.learner.host_memory import SUB_GROUP_ELEMENTS
    from openrlhf_tir.learner.openrlhf_adapter import ZeroStrategy
    from openrlhf_tir.memory.bounds import GRADIENT_BUCKET_ELEMENTS

    told = []
    monkeypatch.setattr(ZeroStrategy, "prepare", lambda self, pair: (told.append(pair[1]), (None, None, None))[1])
    cfg = muon_config(lr=0.05, momentum=0.9)
    strategy = ZeroStrategy(cfg)
    strategy.world_size = 1
    strategy.prepare_training(None, cfg, cfg.actor)
    (settings,) = told
    assert (settings["optim"], settings["max_norm"], settings["muon"], settings["adam"]["lr"]) == (
        "muon",
        0.0,
        {"lr": 0.05, "momentum": 0.9},
        1e-3,
    )
    asked = {"type": "Muon", "params": {"lr": 0.05}}
    of_muon = strategy.get_ds_train_config(asked, max_norm=0.0)["zero_optimization"]
    assert of_muon["reduce_scatter"] is False
    assert of_muon["sub_group_size"] == "auto", "whole matrices are orthogonalised, by DeepSpeed's own groups"
    of_adam = strategy.get_ds_train_config({"type": "AdamW", "params": {"lr": 0.05}}, max_norm=1.0)
    assert of_adam["zero_optimization"]["sub_group_size"] == SUB_GROUP_ELEMENTS
    assert of_adam["zero_optimization"]["reduce_bucket_size"] == GRADIENT_BUCKET_ELEMENTS["cpu"]
    strategy.device = "cuda:1"
    of_adam = strategy.get_ds_train_config({"type": "AdamW", "params": {"lr": 0.05}}, max_norm=1.0)
    assert of_adam["zero_optimization"]["reduce_scatter"] is True
    assert of_adam["zero_optimization"]["reduce_bucket_size"] == GRADIENT_BUCKET_ELEMENTS["cuda"]
    of_muon = strategy.get_ds_train_config(asked, max_norm=0.0)["zero_optimization"]
    assert of_muon["reduce_scatter"] is False, "DeepSpeed refuses Muon with it"


def test_muon_has_its_steps_and_nesterov_within_an_update_and_its_own_rate_under_the_same_schedule():
    import torch
    from deepspeed.runtime.zero.muon import original_muon

    from openrlhf_tir.learner.muon import muon_as, set_lr

    of_deepspeed = original_muon.muon_update
    cfg = muon_config(ns_steps=3, nesterov=False, lr=0.05)
    with muon_as(cfg.actor, "cpu"):
        assert original_muon.muon_update.keywords == {"ns_steps": 3, "nesterov": False}
        assert original_muon.muon_update.func is of_deepspeed
    assert original_muon.muon_update is of_deepspeed
    with muon_as(Config().actor, "cpu"):
        assert original_muon.muon_update is of_deepspeed
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "use_muon": on} for on in (True, False)]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    set_lr(optimizer, 5e-4, cfg.actor)  # half of the schedule's peak
    assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([0.025, 5e-4])
