"""The shapes of well-known models, as in their config.json, to plan for one without having it here."""

from __future__ import annotations

from typing import Any

_QWEN25 = {"model_type": "qwen2", "vocab_size": 152_064, "tie_word_embeddings": False}
_SMALL = _QWEN25 | {"vocab_size": 151_936, "tie_word_embeddings": True}
_QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "vocab_size": 151_936,
    "tie_word_embeddings": False,
    "head_dim": 128,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "intermediate_size": 0,
}


def _decoder(base: dict[str, Any], hidden: int, layers: int, heads: int, **more: int) -> dict[str, Any]:
    return base | {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads} | more


SHAPES: dict[str, dict[str, Any]] = {
    "0.5b": _decoder(_SMALL, 896, 24, 14, num_key_value_heads=2, intermediate_size=4864),
    "1.5b": _decoder(_SMALL, 1536, 28, 12, num_key_value_heads=2, intermediate_size=8960),
    "3b": _decoder(_SMALL, 2048, 36, 16, num_key_value_heads=2, intermediate_size=11008),
    "7b": _decoder(_QWEN25, 3584, 28, 28, num_key_value_heads=4, intermediate_size=18944),
    "14b": _decoder(_QWEN25, 5120, 48, 40, num_key_value_heads=8, intermediate_size=13824),
    "32b": _decoder(_QWEN25, 5120, 64, 40, num_key_value_heads=8, intermediate_size=27648),
    "30b-a3b": _decoder(_QWEN3_MOE, 2048, 48, 32, moe_intermediate_size=768),
    "235b-a22b": _decoder(_QWEN3_MOE, 4096, 94, 64, moe_intermediate_size=1536),
}
"""Qwen2.5 to 32b, Qwen3's mixtures of experts above: the first number is all parameters, the second those that a token
is computed with."""
