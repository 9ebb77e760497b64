"""Packed attention on a tiny model: what a row of several sequences gives is what each gives alone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from openrlhf_tir.errors import ConfigError  # noqa: E402
from openrlhf_tir.learner.attention.packed import (  # noqa: E402
    SDPA_PACKED,
    SequenceLayout,
    check_packing,
    layout_of,
    sdpa_packed,
    set_layout,
)

LENGTHS = (5, 1, 9, 3)


WINDOW = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
GEMMA = {
    "kind": "gemma3_text",
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 4,
    "head_dim": 16,
    "query_pre_attn_scalar": 9,
}
"""Heads wider than their share of the layer, a scale of their own, and positions that each kind of layer turns by
another base."""
MODELS = pytest.mark.parametrize("settings", [{}, WINDOW, GEMMA], ids=["full", "sliding window", "gemma 3"])


def test_no_row_packed_or_not_is_computed_by_cudnn():
    """It plans some 40 ms for every new shape, and torch prefers it on recent cards."""
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def model(kind="qwen2", **settings):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        kind,
        vocab_size=32,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
        **settings,
    )
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").double()


def rows():
    return [torch.randint(32, (1, n), generator=torch.Generator().manual_seed(n)) for n in LENGTHS]


def gradients(made, logits):
    made.zero_grad()
    logits.square().sum().backward()
    return torch.cat([p.grad.flatten() for p in made.parameters()])


@MODELS
def test_packed_sequences_see_themselves_alone(settings):
    made = model(**settings)
    alone = torch.cat([made(ids).logits for ids in rows()], dim=1)
    expected = gradients(made, alone)
    made.set_attn_implementation(SDPA_PACKED)
    packed = made(torch.cat(rows(), dim=1), position_ids=torch.cat([torch.arange(n) for n in LENGTHS])[None]).logits
    assert torch.allclose(packed, alone, atol=1e-12)
    assert torch.allclose(gradients(made, packed), expected, atol=1e-10)


@MODELS
def test_responses_that_share_a_prompt_give_what_whole_sequences_give(settings):
    made = model(**settings)
    prompt, responses = rows()[2], [rows()[0], rows()[1], rows()[3]]
    prompt_tokens = prompt.shape[1]
    # every sequence is weighted by the same function of its logits; a shared prompt counts once for each of them
    alone = [made(torch.cat([prompt, response], dim=1)).logits for response in responses]
    expected = gradients(made, torch.cat([logits[:, prompt_tokens:] for logits in alone], dim=1))

    made.set_attn_implementation(SDPA_PACKED)
    lengths = [prompt_tokens, *(response.shape[1] for response in responses)]
    positions = torch.cat(
        [torch.arange(prompt_tokens), *(torch.arange(prompt_tokens, prompt_tokens + n) for n in lengths[1:])]
    )[None]
    set_layout(positions, SequenceLayout.of_segments(lengths, [-1, 0, 0, 0], positions.device))
    shared = made(torch.cat([prompt, *responses], dim=1), position_ids=positions).logits
    assert torch.allclose(
        shared[:, prompt_tokens:], torch.cat([x[:, prompt_tokens:] for x in alone], dim=1), atol=1e-12
    )
    assert torch.allclose(shared[:, :prompt_tokens], alone[0][:, :prompt_tokens], atol=1e-12)
    # the norms compute in float32 whatever the model is in
    assert torch.allclose(gradients(made, shared[:, prompt_tokens:]), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once_at_the_end_on_a_cpu(dtype):
    """Attention itself is computed in fp32, so that output and gradients are those of fp32, rounded."""
    torch.manual_seed(5)
    positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]
    tokens = positions.shape[1]
    module = SimpleNamespace(num_key_value_groups=2, is_causal=True, training=False)

    def outcome(precision: torch.dtype) -> list[torch.Tensor]:
        torch.manual_seed(6)
        heads = [torch.randn(1, n, tokens, 8).to(dtype).to(precision).requires_grad_() for n in (4, 2, 2)]
        output, _ = sdpa_packed(module, *heads, None, position_ids=positions)
        output.backward(torch.randint(-2, 3, output.shape).to(precision))  # exact in every precision
        return [output, *(x.grad for x in heads)]

    for half, full in zip(outcome(dtype), outcome(torch.float32), strict=True):
        assert half.dtype == dtype
        assert torch.equal(half, full.to(dtype))


def test_positions_of_shared_prompts_without_their_layout_are_refused():
    with pytest.raises(RuntimeError):
        layout_of(torch.tensor([[0, 1, 2, 1, 2]]))


def test_lengths_are_read_from_positions_that_begin_anew():
    assert layout_of(torch.tensor([[0, 1, 2, 0, 0, 1]])).lengths == (3, 1, 2)
    assert layout_of(torch.tensor([[0, 1, 2]])).lengths == (3,)


def of_kind(name: str, **settings):
    """Its attention registered as packed; no weights."""
    shape = {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 32,
    }
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = transformers.AutoConfig.for_model(name, **shape, **tokens, **settings)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=SDPA_PACKED)


HYBRIDS = {
    "qwen3_5_text": ({"layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
    "lfm2": ({"layer_types": ["conv", "full_attention"]}, "conv|linear_attention"),
    "minimax": ({}, "linear_attention"),
    "jamba": ({}, "layers with a state|linear_attention"),
    "llama4_text": ({}, "chunked_attention"),
}


@pytest.mark.parametrize("name", HYBRIDS)
def test_models_in_whose_packed_rows_sequences_would_see_each_other_are_refused(name):
    settings, kind = HYBRIDS[name]
    with pytest.raises(ConfigError, match=f"({kind}).*ds.packing_samples"):
        check_packing(of_kind(name, **settings))


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "llama", "mixtral", "gemma3_text", "qwen3_moe"])
def test_models_of_attention_alone_are_packed(name):
    check_packing(of_kind(name))


def test_a_model_that_keeps_positions_from_its_attention_is_refused_with_what_to_set():
    ids = torch.zeros(1, 4, dtype=torch.long, device="meta")
    with pytest.raises(ConfigError, match=r"PersimmonAttention.*ds\.packing_samples"):
        of_kind("persimmon")(ids, position_ids=ids, use_cache=False)


def test_on_a_cpu_keys_and_values_are_not_copied_for_the_heads_that_share_them(monkeypatch):
    from openrlhf_tir.learner.attention import packed

    given = []

    def attention(query, key, value, *, enable_gqa, **options):
        given.append((key.shape[1], value.shape[1], enable_gqa))
        return query

    monkeypatch.setattr(packed, "scaled_dot_product_attention", attention)
    query, key, value = torch.zeros(1, 4, 5, 8), torch.zeros(1, 2, 5, 8), torch.zeros(1, 2, 5, 8)
    positions = torch.tensor([[0, 1, 0, 1, 2]])
    packed.sdpa_packed(torch.nn.Module(), query, key, value, None, position_ids=positions, scaling=0.5)
    assert given == [(2, 2, True)] * 2
