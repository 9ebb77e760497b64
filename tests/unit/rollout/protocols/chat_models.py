"""Chat models without weights: the templates of tests/data/chat_templates, each with a small byte-level tokenizer that
has its special tokens."""

from __future__ import annotations

from functools import cache
from pathlib import Path

TEMPLATES = Path(__file__).resolve().parents[3] / "data" / "chat_templates"
CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
HEADERS = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|python_tag|>",
)
INST = (
    "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
)  # fmt: skip
SPECIALS = {
    "qwen2_5": CHATML,
    "qwen3": CHATML,
    "llama3": HEADERS,
    "llama3_1": HEADERS,
    "mistral_v1": INST[:4],
    "mistral_v3": INST,
}
NAMED = {
    CHATML: (None, "<|im_end|>"),
    HEADERS: ("<|begin_of_text|>", "<|eot_id|>"),
    INST: ("<s>", "</s>"),
    INST[:4]: ("<s>", "</s>"),
}
"""Special tokens -> (bos, eos)."""
ADDED = {
    "qwen2_5": ("<tool_call>", "</tool_call>"),
    "qwen3": ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
}
"""Tokens of their own that are not special: text may hold them."""


def template_text(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text()


def named(name: str) -> dict[str, str]:
    bos, eos = NAMED[SPECIALS[name]]
    return {"bos_token": bos or "", "eos_token": eos}


@cache
def tokenizer(name: str):
    """Bytes, a few merges that were learned from a line of chat, and the model's special tokens. Only bos and eos are
    called by a name, as in Llama's."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    raw.train_from_iterator(
        ['user assistant\n\n{"name": "python", "arguments": {"code": "print(6*7)"}}\n tool_response The answer is 42.'],
        trainer,
    )
    raw.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIALS[name]])
    raw.add_tokens([AddedToken(t, special=False, normalized=False) for t in ADDED.get(name, ())])
    bos, eos = NAMED[SPECIALS[name]]
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token=bos, eos_token=eos, chat_template=template_text(name)
    )
