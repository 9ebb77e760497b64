"""A model that answers by keywords, made by hand: so that what asks it gets known answers, some right and some wrong.

Attention is uniform (queries are 0), so its output counts the key phrases in all of the text before; each is a token of
its own and adds to the logit of its answer, which is a token too, and is followed by the end.

    logit(answer) = sum over its phrases of weight * count        the default answer where no phrase occurs
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

HIDDEN, HEADS, CONTEXT = 64, 2, 32768
FIRST_PHRASE, ANSWERED, FIRST_COUNT = 1, 30, 32
"""Dimensions of the residual stream: 0 is ordinary text, then one for each phrase; an answer's mark; counts."""
COUNTED, MARK = 1e5, 1e7
"""One phrase in 32,768 tokens outweighs the default; an answer's mark outweighs every phrase."""
EOS = "<|endoftext|>"


class Key(NamedTuple):
    phrase: str
    answer: str
    weight: float = 1.0


def save_keyword_model(directory: Path, keys: list[Key], default: str, corpus: list[str]) -> Path:
    """`corpus`: texts like those that it will read, from which pairs of letters are merged into tokens."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    assert len(keys) < ANSWERED - FIRST_PHRASE
    answers = list(dict.fromkeys([*(k.answer for k in keys), default]))
    tokenizer = _tokenizer(corpus, [*(k.phrase for k in keys), *answers])
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=HIDDEN // HEADS,
        intermediate_size=HIDDEN,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    model = Qwen2ForCausalLM(config).float()
    token = tokenizer.convert_tokens_to_ids
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(1.0 if "norm" in name else 0.0)
        embedding, head, attention = (
            model.model.embed_tokens.weight,
            model.lm_head.weight,
            model.model.layers[0].self_attn,
        )
        embedding[:, 0] = 1.0
        attention.v_proj.weight.copy_(torch.eye(HIDDEN))
        for i, key in enumerate(keys):
            embedding[token(key.phrase), 0] = 0.0
            embedding[token(key.phrase), FIRST_PHRASE + i] = 1.0
            attention.o_proj.weight[FIRST_COUNT + i, FIRST_PHRASE + i] = COUNTED
            head[token(key.answer), FIRST_COUNT + i] = key.weight
        for answer in answers:
            embedding[token(answer), 0] = 0.0
            embedding[token(answer), ANSWERED] = MARK
        head[token(default), 0] = 1.0
        head[tokenizer.eos_token_id, ANSWERED] = 1.0
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def _tokenizer(corpus: list[str], whole: list[str]):
    import json

    from tokenizers import AddedToken, ByteLevelBPETokenizer
    from transformers import Qwen2Tokenizer

    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(corpus, vocab_size=1500, show_progress=False)
    made = json.loads(trained.to_str())["model"]
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in made["merges"]]
    tokenizer = Qwen2Tokenizer(vocab=made["vocab"], merges=merges, eos_token=EOS, pad_token=EOS, unk_token=None)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in whole])
    return tokenizer
