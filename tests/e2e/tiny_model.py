"""A tiny Qwen2 with a tokenizer, made on the spot: what the tests of the real engine load. Nothing is downloaded.

167k parameters, vocabulary 99: PAD, EOS, newline, the printable ASCII characters, and one token of two characters ("ab"), so that
a stop string can end inside a token.
"""

from __future__ import annotations

from pathlib import Path

PAD, EOS = 0, 1
WORD = "ab"


def make_tokenizer():
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    specials = ["<pad>", "<eos>"]
    vocab = {t: i for i, t in enumerate([*specials, "\n", *map(chr, range(32, 127)), WORD])}
    tokenizer = Tokenizer(models.BPE(vocab, merges=[("a", "b")]))
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in specials])
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def make_model(seed: int = 0, *, scale: float = 1.0):
    """`scale` widens the initialisation: log-probs of different seeds then differ by whole nats."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=99,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        rope_theta=1e4,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=None,
        initializer_range=0.02 * scale,
    )
    return Qwen2ForCausalLM(config).float().eval()


def save_tiny(directory: Path, seed: int = 0, *, scale: float = 8.0) -> Path:
    make_model(seed, scale=scale).save_pretrained(directory)
    make_tokenizer().save_pretrained(directory)
    return directory
