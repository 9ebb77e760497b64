"""LoRA without DeepSpeed: what the model's weights are under their HF names, which targets are refused, and that the
chunked head still answers."""

from __future__ import annotations

import numpy as np
import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.learner.packing import MicroBatch
from tests.e2e.support.tiny_model import save_tiny

pytestmark = pytest.mark.slow  # importing openrlhf, transformers and DeepSpeed takes seconds


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("model"), seed=0)


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory):
    """A process group of one: what is written is agreed upon."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path_factory.mktemp('group')}/at", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def policy(directory, **lora):
    from openrlhf_tir.learner.openrlhf_adapter import PolicyModel, ZeroStrategy

    cfg = Config(
        actor={"model_name_or_path": str(directory), "num_gpus_per_node": 1},
        ds={
            "param_dtype": "fp32",
            "attn_implementation": "sdpa",
            "zero_stage": 2,
            "lora": {"rank": 4, "alpha": 8, **lora},
        },
    )
    strategy = ZeroStrategy(cfg)
    strategy.world_size = 1
    return PolicyModel(cfg, strategy)


def moved(model) -> None:
    """As training would: the updates are no longer zero."""
    import torch

    with torch.no_grad():
        for name, p in model.named_parameters():
            if ".lora_B." in name:
                p.normal_(0, 0.1, generator=torch.Generator().manual_seed(len(name)))


def test_the_file_has_the_models_names_and_its_weights_with_the_updates_added(directory, tmp_path):
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from openrlhf_tir.learner.weights_file import write_weights

    model = policy(directory)
    write_weights(model.model, tmp_path / "fresh.safetensors", rank=0)
    fresh, original = load_file(tmp_path / "fresh.safetensors"), load_file(directory / "model.safetensors")
    assert fresh.keys() == original.keys() and all(torch.equal(fresh[n], original[n]) for n in original)

    moved(model.model)
    write_weights(model.model, tmp_path / "moved.safetensors", rank=0)
    weights = load_file(tmp_path / "moved.safetensors")
    changed = {n for n in original if not torch.equal(weights[n], original[n])}
    assert changed and all(n.endswith("_proj.weight") for n in changed)
    plain = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    plain.load_state_dict(weights, strict=False)
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    with torch.no_grad():
        found = model.log_probs(MicroBatch(ids, torch.ones_like(ids), {}))[0]
        wanted = torch.log_softmax(plain(ids).logits[0, :-1], -1).gather(-1, ids[0, 1:, None])[:, 0]
    assert np.allclose(found.numpy(), wanted.numpy(), atol=1e-5)


def test_the_adapter_alone_is_what_peft_loads(directory, tmp_path):
    import torch
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from openrlhf_tir.learner.lora import ADAPTER, adapter_weights
    from openrlhf_tir.learner.weights_file import write_file

    model = policy(directory, target_modules=["q_proj", "v_proj"]).model
    moved(model)
    write_file(adapter_weights(model), tmp_path / "adapter_model.safetensors", rank=0)
    assert load_file(tmp_path / "adapter_model.safetensors").keys() == get_peft_model_state_dict(model).keys()
    model.peft_config[ADAPTER].save_pretrained(str(tmp_path))
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32), tmp_path)
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    with torch.no_grad():
        assert torch.allclose(loaded(ids).logits, model(ids).logits, atol=1e-5)


def test_only_the_updates_train_and_every_one_gets_a_gradient(directory):
    import torch

    model = policy(directory)
    moved(model.model)
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    model.score(MicroBatch(ids, torch.ones_like(ids), {}))[0].sum().backward()
    trained = {name: p for name, p in model.model.named_parameters() if p.requires_grad}
    assert trained and all(".lora_" in name for name in trained)
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in trained.values())
    assert all(p.grad is None for name, p in model.model.named_parameters() if name not in trained)


@pytest.mark.parametrize("targets", [["nowhere"], ["q_proj", "nowhere"]])
def test_targets_that_match_nothing_are_refused_with_those_that_would(directory, targets):
    with pytest.raises(
        ConfigError,
        match=r"'nowhere'.*down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj",
    ):
        policy(directory, target_modules=targets)


@pytest.mark.parametrize("target", ["embed_tokens", "lm_head"])
def test_the_models_input_and_output_are_no_targets(directory, target):
    with pytest.raises(ConfigError, match=rf"ds\.lora\.target_modules.*{target}"):
        policy(directory, target_modules=["q_proj", target])


@pytest.mark.filterwarnings("ignore:.*_pattern keys:RuntimeWarning")
def test_an_adapter_of_a_mixtures_experts_is_refused_with_the_layers_to_name():
    """peft's all-linear adapts experts and routers as well, of which nothing could be merged for the engines."""
    from peft import LoraConfig, get_peft_model

    from miniatures.toy.model import build_mixture
    from openrlhf_tir.learner.lora import check_targets

    adapted = get_peft_model(build_mixture(0), LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"))
    with pytest.raises(ConfigError, match=r"experts.*q_proj"):
        check_targets(adapted, ["all-linear"])
    attention = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    check_targets(get_peft_model(build_mixture(0), attention), ["q_proj", "v_proj"])
