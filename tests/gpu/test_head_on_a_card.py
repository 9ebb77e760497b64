"""What must be right on a card: the compiled head gives the plain formulas' values and gradients."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

VOCABULARY, HIDDEN = 1_000, 128
TEMPERATURE = 0.7


@pytest.mark.parametrize("tokens", [1, 100, 2_048, 5_000])
@pytest.mark.parametrize("entropy_grad", [False, True])
def test_the_compiled_head_gives_what_log_softmax_gives(tokens, entropy_grad):
    from openrlhf_tir.learner.linear_head import chunked_scores

    generator = torch.Generator("cuda").manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=generator, device="cuda").to(torch.bfloat16).requires_grad_()

    hidden, weight = random(tokens, HIDDEN), random(VOCABULARY, HIDDEN)
    targets = torch.randint(VOCABULARY, (tokens,), generator=generator, device="cuda")
    gradient = torch.randn(tokens, generator=generator, device="cuda")
    found = chunked_scores(hidden, weight, targets, temperature=TEMPERATURE, entropy_grad=entropy_grad)
    exact_hidden, exact_weight = (x.detach().double().requires_grad_() for x in (hidden, weight))
    # The matrix product itself is rounded to bf16, as in the model; the reference rounds it as well.
    product = exact_hidden @ exact_weight.T
    rounded = product + (product.detach().to(torch.bfloat16).double() - product.detach())
    log_all = torch.log_softmax(rounded / TEMPERATURE, -1)
    log_probs = log_all.gather(-1, targets[:, None]).squeeze(-1)
    entropy = -(log_all.exp() * log_all).sum(-1)
    # bf16 logits of about 30 differ by up to .125 where two matrix products round differently.
    assert (found.log_probs - log_probs).abs().mean() < 0.02
    assert (found.entropy - entropy).abs().mean() < 0.02
    loss = (gradient * found.log_probs).sum() + (found.entropy.sum() if entropy_grad else 0)
    exact_loss = (gradient * log_probs).sum() + (entropy.sum() if entropy_grad else 0)
    ours = torch.autograd.grad(loss, (hidden, weight))
    exact = torch.autograd.grad(exact_loss, (exact_hidden, exact_weight))
    for mine, right in zip(ours, exact, strict=True):
        cosine = torch.nn.functional.cosine_similarity(mine.double().flatten(), right.flatten(), dim=0)
        assert cosine > 0.999


def test_layers_of_liger_give_what_those_of_transformers_give(tmp_path, monkeypatch):
    pytest.importorskip("liger_kernel")
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from transformers.models.qwen2 import modeling_qwen2

    from openrlhf_tir.learner import liger

    for name in ("Qwen2RMSNorm", "Qwen2MLP", "apply_rotary_pos_emb"):
        monkeypatch.setattr(modeling_qwen2, name, getattr(modeling_qwen2, name))  # so that it is put back
    config = Qwen2Config(
        vocab_size=64,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    config.save_pretrained(tmp_path)
    torch.manual_seed(0)
    plain = Qwen2ForCausalLM(config).to("cuda", torch.bfloat16)
    liger.apply(str(tmp_path))
    fused = Qwen2ForCausalLM(config).to("cuda", torch.bfloat16)
    assert type(fused.model.norm) is not type(plain.model.norm)
    fused.load_state_dict(plain.state_dict())
    ids = torch.randint(64, (2, 50), generator=torch.Generator().manual_seed(1)).cuda()
    expected, found = plain(ids).logits.float(), fused(ids).logits.float()
    assert (found - expected).abs().max() <= 2**-5 * expected.abs().max()
    expected.square().mean().backward()
    found.square().mean().backward()
    for name, parameter in fused.named_parameters():
        gradient = plain.get_parameter(name).grad.float().flatten()
        assert torch.nn.functional.cosine_similarity(parameter.grad.float().flatten(), gradient, dim=0) > 0.99, name
