"""What must be right on a card: packed rows give what each sequence gives alone. Skipped where there is none."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

LENGTHS = (5, 1, 70, 33, 129)
BF16_RELATIVE = 2**-7
"""Two roundings of bfloat16, which has 8 bits of mantissa."""


def small_model(implementation: str, **settings) -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=64,
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
        attn_implementation=implementation,
        **settings,
    )
    return transformers.Qwen2ForCausalLM(config).to("cuda", torch.bfloat16)


def rows() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(64, (1, n), generator=generator).cuda() for n in LENGTHS]


@pytest.mark.parametrize(
    "settings",
    [{}, {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}],
    ids=["full", "sliding window"],
)
def test_a_packed_row_gives_what_its_sequences_give_alone(settings):
    from openrlhf_tir.learner.attention.packed import SDPA_PACKED

    reference = small_model("eager", **settings).float()
    packed = small_model(SDPA_PACKED, **settings)
    alone = torch.cat([reference(ids).logits for ids in rows()], dim=1)
    positions = torch.cat([torch.arange(n) for n in LENGTHS])[None].cuda()
    together = packed(torch.cat(rows(), dim=1), position_ids=positions).logits.float()
    assert (together - alone).abs().max() <= 4 * BF16_RELATIVE * alone.abs().max()
    alone.square().mean().backward()
    together.square().mean().backward()
    for name, parameter in packed.named_parameters():
        expected = reference.get_parameter(name).grad
        assert (
            torch.nn.functional.cosine_similarity(parameter.grad.float().flatten(), expected.flatten(), dim=0) > 0.99
        ), name


def test_responses_that_share_a_prompt_give_what_whole_sequences_give():
    from openrlhf_tir.learner.attention.packed import SDPA_PACKED, SequenceLayout, set_layout

    reference = small_model("eager").float()
    packed = small_model(SDPA_PACKED)
    prompt, *responses = rows()[2:]
    prompt_tokens = prompt.shape[1]
    lengths = [prompt_tokens, *(response.shape[1] for response in responses)]
    starts = [torch.arange(prompt_tokens)]
    starts += [torch.arange(prompt_tokens, prompt_tokens + length) for length in lengths[1:]]
    positions = torch.cat(starts)[None].cuda()
    set_layout(positions, SequenceLayout.of_segments(lengths, [-1, 0, 0], positions.device))
    alone = [reference(torch.cat([prompt, response], dim=1)).logits[:, prompt_tokens:] for response in responses]
    expected = torch.cat(alone, dim=1)
    together = packed(torch.cat([prompt, *responses], dim=1), position_ids=positions).logits[:, prompt_tokens:].float()
    assert (together - expected).abs().max() <= 4 * BF16_RELATIVE * expected.abs().max()
    expected.square().mean().backward()
    together.square().mean().backward()
    for name, parameter in packed.named_parameters():
        gradient = reference.get_parameter(name).grad.flatten()
        assert torch.nn.functional.cosine_similarity(parameter.grad.float().flatten(), gradient, dim=0) > 0.99, name


def test_the_layers_of_a_row_call_flash_attention_and_never_cudnn():
    from openrlhf_tir.learner.attention.packed import SDPA_PACKED

    model = small_model(SDPA_PACKED)
    positions = torch.cat([torch.arange(n) for n in LENGTHS])[None].cuda()
    with torch.profiler.profile() as profile:
        model(torch.cat(rows(), dim=1), position_ids=positions).logits.sum().backward()
    names = {event.key for event in profile.key_averages()}
    assert any("_flash_attention_forward" in name for name in names)
    assert not [name for name in names if "cudnn_attention" in name]
