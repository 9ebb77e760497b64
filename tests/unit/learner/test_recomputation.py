"""Which layers compute their activations again: as many as asked for, or as few as the memory plan says fit."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from openrlhf_tir.config import Config  # noqa: E402
from openrlhf_tir.errors import ConfigError  # noqa: E402
from openrlhf_tir.learner import liger  # noqa: E402
from openrlhf_tir.learner.recomputation import (  # noqa: E402
    fewest_that_fit,
    layers_to_recompute,
    recompute_first_layers,
)
from openrlhf_tir.memory import memory_plan as memory_plans  # noqa: E402
from openrlhf_tir.memory.memory_plan import memory_plan  # noqa: E402
from tests.unit.memory.test_memory_plan import SMALL, model  # noqa: E402

LAYERS = 3


def tiny_model() -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    return transformers.Qwen2ForCausalLM(config)


@pytest.mark.parametrize("number", [None, 0, 1, LAYERS])
def test_layers_that_are_not_recomputed_run_once_and_the_gradient_stays_the_same(number):
    ids = torch.randint(64, (2, 9), generator=torch.Generator().manual_seed(1))
    plain = tiny_model().train()
    plain(ids).logits.square().mean().backward()
    checkpointed = tiny_model().train()
    checkpointed.gradient_checkpointing_enable({"use_reentrant": False})
    recompute_first_layers(checkpointed, number)
    calls = [0] * LAYERS
    for index, layer in enumerate(checkpointed.model.layers):

        def count(*_, index=index):
            calls[index] += 1

        layer.mlp.register_forward_pre_hook(count)
    checkpointed(ids).logits.square().mean().backward()
    recomputed = LAYERS if number is None else number
    assert calls == [2] * recomputed + [1] * (LAYERS - recomputed)
    for name, parameter in checkpointed.named_parameters():
        torch.testing.assert_close(parameter.grad, plain.get_parameter(name).grad)


def test_a_model_whose_layers_cannot_choose_is_refused():
    with pytest.raises(ConfigError):
        recompute_first_layers(torch.nn.Linear(2, 2), 1)


@pytest.fixture
def settings(tmp_path):
    def make(layers) -> Config:
        return Config.model_validate(
            {
                "actor": {
                    "model_name_or_path": str(model(tmp_path, SMALL)),
                    "gradient_checkpointing_enable": True,
                    "gradient_checkpointing_layers": layers,
                    "num_gpus_per_node": 1,
                },
                "ds": {"packing_samples": True, "attn_implementation": "sdpa"},
                "train": {"max_tokens_per_gpu": 32_768},
            }
        )

    return make


@pytest.mark.parametrize("number", [-1, 1.5, "most"])
def test_a_number_of_layers_that_is_none_is_refused(settings, number):
    with pytest.raises(ValueError, match="gradient_checkpointing_layers"):
        settings(number)


@pytest.mark.parametrize(("ranks", "width", "is_unit"), [(1, 512, True), (2, 512, False), (2, 32, True)])
def test_a_layer_is_one_unit_of_zero3_where_no_rank_has_to_gather_it(monkeypatch, ranks, width, is_unit):
    from openrlhf_tir.learner import openrlhf_adapter

    monkeypatch.setattr(openrlhf_adapter.dist, "get_world_size", lambda: ranks)
    config = transformers.Qwen2Config(
        vocab_size=64, hidden_size=width, intermediate_size=width, num_hidden_layers=1, num_attention_heads=4
    )
    layers = transformers.Qwen2ForCausalLM(config)
    openrlhf_adapter.join_layers(layers)
    assert bool(getattr(layers.model.layers[0], "_z3_leaf", False)) is is_unit


def test_auto_recomputes_as_few_layers_as_fit(settings):
    def planned(number: int) -> int:
        return memory_plan(settings(number), 80 << 30).learner_gpu

    # With one recomputed layer its input is kept, and its activations exist as well while it is computed again.
    assert planned(1) > planned(0) > planned(2)
    assert fewest_that_fit(settings("auto"), int(planned(0) / 0.9) + 10) == 0
    assert fewest_that_fit(settings("auto"), int(planned(2) / 0.9) + 10) == 2
    assert fewest_that_fit(settings("auto"), planned(SMALL["num_hidden_layers"])) is None


def test_auto_recomputes_every_layer_without_a_gpu(settings):
    assert layers_to_recompute(settings("auto"), "cpu") is None
    assert layers_to_recompute(settings(2), "cpu") == 2


@pytest.mark.parametrize(
    ("setting", "on_gpu", "installed", "expected"),
    [
        (None, True, True, True),
        (None, True, False, False),
        (None, False, True, False),
        (False, True, True, False),
        (True, True, True, True),
        (True, True, False, ConfigError),
        (True, False, True, ConfigError),
    ],
)
def test_liger_is_used_on_a_gpu_where_it_is_installed(settings, monkeypatch, setting, on_gpu, installed, expected):
    for room in (liger, memory_plans):
        monkeypatch.setattr(room, "find_spec", lambda _: object() if installed else None)
    cfg = settings(None)
    cfg = cfg.model_copy(update={"ds": cfg.ds.model_copy(update={"use_liger_kernel": setting})})
    if expected is ConfigError:
        with pytest.raises(ConfigError):
            liger.is_used(cfg, on_gpu=on_gpu)
    else:
        assert liger.is_used(cfg, on_gpu=on_gpu) is expected
