"""Toy model: seed -> a tiny Qwen2 with random weights, as a Hugging Face directory with its tokenizer. 167 thousand parameters, fp32."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .tokenizer import EOS_ID, PAD_ID, VOCAB_SIZE, save_tokenizer

if TYPE_CHECKING:
    from transformers import Qwen2ForCausalLM

MAX_POSITIONS = 1024
INIT_STD = 0.08
"""Qwen2's own 0.02 is for widths of thousands: at width 64 the model then takes twice as many steps before it copies operands at all."""
ROPE_THETA = 100.0
"""Longest wavelength 470 tokens: episodes have 250. Frequencies that never turn within an episode only delay copying."""


def build_model(seed: int) -> Qwen2ForCausalLM:
    """The randomly initialised model; the same weights for the same seed. The global torch RNG is left as it was."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=192,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=True,
        initializer_range=INIT_STD,
        pad_token_id=PAD_ID,
        bos_token_id=None,
        eos_token_id=EOS_ID,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config).float()


def save_model(directory: Path, seed: int) -> None:
    """Writes config, weights and tokenizer into `directory`."""
    build_model(seed).save_pretrained(directory)
    save_tokenizer(directory)
