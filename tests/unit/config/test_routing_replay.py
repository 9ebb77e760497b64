"""rollout.routing_replay: what it does not work with is refused before a model loads."""

from __future__ import annotations

import pytest

from openrlhf_tir.cli.checks.learner import check_lora_of_mixture, check_routing
from openrlhf_tir.config import Config
from openrlhf_tir.errors import ConfigError


@pytest.mark.parametrize(
    ("sections", "setting"),
    [
        ({"rollout": {"engine": "torch"}}, "rollout.engine"),
        ({"rollout": {"agent": "external"}}, "rollout.agent"),
        ({"vllm": {"engine_args": {"pipeline_parallel_size": 2}}}, "pipeline_parallel_size"),
    ],
)
def test_what_does_not_return_experts_is_refused_with_its_setting(sections, setting):
    Config(**sections)
    rollout = {**sections.get("rollout", {}), "routing_replay": True}
    with pytest.raises(ValueError, match="routing_replay") as refused:
        Config(**{**sections, "rollout": rollout})
    assert setting in str(refused.value)


def test_vllms_own_argument_is_set_by_the_setting():
    with pytest.raises(ValueError, match=r"rollout\.routing_replay"):
        Config(vllm={"engine_args": {"enable_return_routed_experts": True}})


@pytest.mark.parametrize("experts", ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"])
def test_a_dense_model_is_refused_and_a_mixture_is_not(experts):
    cfg = Config(rollout={"routing_replay": True}, actor={"model_name_or_path": "some"})
    check_routing(cfg, {"model_type": "qwen3_moe", experts: 8})
    check_routing(cfg, {"text_config": {experts: 8}})
    check_routing(cfg, {})  # nothing is known of it
    with pytest.raises(ConfigError, match=r"rollout\.routing_replay"):
        check_routing(cfg, {"model_type": "qwen2", "hidden_size": 64})
    check_routing(Config(), {"model_type": "qwen2"})
    check_routing(cfg, {"model_type": "qwen3_moe", experts: float("inf")})  # the loading of the model reports it


def small_mixture(model_type: str) -> dict[str, object]:
    return {
        "model_type": model_type,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "vocab_size": 32,
    }


def test_a_mixture_whose_routers_choose_otherwise_than_by_topk_is_refused_before_it_is_loaded():
    """Phi-3.5-MoE draws its two experts one after the other."""
    cfg = Config(rollout={"routing_replay": True}, actor={"model_name_or_path": "some"})
    check_routing(cfg, small_mixture("mixtral"))
    with pytest.raises(ConfigError, match=r"rollout\.routing_replay.*PhimoeForCausalLM"):
        check_routing(cfg, small_mixture("phimoe"))


@pytest.mark.parametrize(("targets", "is_refused"), [(["all-linear"], True), (["q_proj", "v_proj"], False)])
def test_lora_of_all_layers_of_a_mixture_is_refused_before_it_is_loaded(targets, is_refused):
    cfg = Config(ds={"lora": {"rank": 4, "target_modules": targets}}, actor={"model_name_or_path": "some"})
    check_lora_of_mixture(cfg, {"model_type": "qwen2"})
    if is_refused:
        with pytest.raises(ConfigError, match=r"ds\.lora\.target_modules.*q_proj"):
            check_lora_of_mixture(cfg, small_mixture("mixtral"))
    else:
        check_lora_of_mixture(cfg, small_mixture("mixtral"))
