"""Packed attention on a tiny model: what a row of several sequences gives is what each gives alone."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from openrlhf_tir.learner.attention.packed import SDPA_PACKED, lengths  # noqa: E402

LENGTHS = (5, 1, 9, 3)


def model(**settings):
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
        attn_implementation="sdpa",
        **settings,
    )
    return transformers.Qwen2ForCausalLM(config).double()


def rows():
    return [torch.randint(32, (1, n), generator=torch.Generator().manual_seed(n)) for n in LENGTHS]


def gradients(made, logits):
    made.zero_grad()
    logits.square().sum().backward()
    return torch.cat([p.grad.flatten() for p in made.parameters()])


@pytest.mark.parametrize("settings", [{}, {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}], ids=["full", "sliding window"])
def test_packed_sequences_see_themselves_alone(settings):
    made = model(**settings)
    alone = torch.cat([made(ids).logits for ids in rows()], dim=1)
    expected = gradients(made, alone)
    made.set_attn_implementation(SDPA_PACKED)
    packed = made(torch.cat(rows(), dim=1), position_ids=torch.cat([torch.arange(n) for n in LENGTHS])[None]).logits
    assert torch.allclose(packed, alone, atol=1e-12)
    assert torch.allclose(gradients(made, packed), expected, atol=1e-10)


def test_lengths_are_read_from_positions_that_begin_anew():
    assert lengths(torch.tensor([[0, 1, 2, 0, 0, 1]])) == [3, 1, 2]
    assert lengths(torch.tensor([[0, 1, 2]])) == [3]
