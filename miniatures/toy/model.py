"""Toy models: seed -> a tiny Qwen2, or a Qwen3-MoE, at random, as a Hugging Face directory with its tokenizer, fp32."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .tokenizer import EOS_ID, PAD_ID, VOCAB_SIZE, save_tokenizer

if TYPE_CHECKING:
    from transformers import Qwen2ForCausalLM, Qwen3MoeForCausalLM

MAX_POSITIONS = 8192
"""Rotary, so they cost no parameter. A character is a token: a help desk's policy with its functions has 3,000."""
INIT_STD, EMBEDDING_STD = 0.08, 0.25
"""Qwen2's own 0.02 for everything is for widths of thousands. At width 64 the embeddings must be the larger ones, or a
token's identity drowns in what the first attention layer adds to it; copying operands into code then appears after
150-220 steps instead of 400."""


EXPERTS = 8
"""Experts of each layer of the mixture; a token is sent to two of them."""
ROUTER_STD = 0.3
"""Initial width of the router's weights. With 0.08 all experts are nearly equal, and rounding decides between them for
every other token."""


def build_model(seed: int) -> Qwen2ForCausalLM:
    """Return the dense model with random weights of this seed. The global generator of torch stays as it was."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(Qwen2Config(**_shape())).float()
        torch.nn.init.normal_(model.get_input_embeddings().weight, std=EMBEDDING_STD)
    return model


def build_mixture(seed: int) -> Qwen3MoeForCausalLM:
    """Return a mixture of experts of 353k parameters, for tests of routing and pushes; otherwise like `build_model`.

    vLLM's kernel on a CPU takes multiples of 32 for the hidden size and for the inner size of an expert.
    """
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    experts = {
        "moe_intermediate_size": 64,
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**_shape(), **experts)).float()
        torch.nn.init.normal_(model.get_input_embeddings().weight, std=EMBEDDING_STD)
        for layer in model.model.layers:
            torch.nn.init.normal_(layer.mlp.gate.weight, std=ROUTER_STD)
    return model


def _shape() -> dict[str, Any]:
    """Return the settings of a configuration of transformers that both models have."""
    return {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 192,
        "max_position_embeddings": MAX_POSITIONS,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        "tie_word_embeddings": True,
        "initializer_range": INIT_STD,
        "pad_token_id": PAD_ID,
        "bos_token_id": None,
        "eos_token_id": EOS_ID,
        "dtype": "float32",
    }


def save_model(directory: Path, seed: int, *, mixture: bool = False) -> None:
    """Write config, weights and tokenizer of `build_model` or `build_mixture` into `directory`."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # one shard of 700 kB
    (build_mixture if mixture else build_model)(seed).save_pretrained(directory)
    save_tokenizer(directory)
