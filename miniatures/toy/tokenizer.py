"""Character tokenizer: printable ASCII and newline, one token each, plus PAD and EOS; 98 ids.

It is a Qwen2Tokenizer whose byte-level BPE has no merges. (transformers makes that class for every directory whose
config says qwen2, whatever the tokenizer's files say; a tokenizer of another class would come back from AutoTokenizer
without its spaces.) Text of printable ASCII comes back exactly; every other character is dropped, so that no tool
output can fail to encode. `encode` never gives PAD or EOS: their names in a text are the characters that they consist
of, as in what engines/codec.py encodes.

Its chat template renders a conversation as the traces of the cold start are written, which have no turns of their own:
so the base model can chat."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import Qwen2Tokenizer

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
PAD, EOS = "<|pad|>", "<|endoftext|>"
PAD_ID, EOS_ID = len(CHARACTERS), len(CHARACTERS) + 1
VOCAB_SIZE = len(CHARACTERS) + 2

CHAT_TEMPLATE = (
    "{%- for tool in tools or [] if (tool.function or tool).name != 'python' -%}"
    "{{- tool | tojson ~ '\\n' -}}{%- endfor -%}"
    "{%- for m in messages -%}"
    "{%- if m.role == 'tool' -%}{{- '\\n```output\\n' ~ m.content ~ '\\n\\n```\\n\\n\\n' -}}"
    "{%- elif m.role == 'assistant' -%}{{- m.content -}}"
    "{%- else -%}{{- ('' if loop.first else '\\n') ~ 'User:"
    " ' ~ m.content ~ '\\nAssistant:' -}}{%- endif -%}{%- endfor -%}"
)
"""The model's turn begins behind "Assistant:" and behind a tool's output, so there is no generation prompt. Tools are
shown but for `python`, which the cold start taught without."""

_ID = {c: i for i, c in enumerate(CHARACTERS)}
_BYTE_LEVEL_NAME = {"\n": "Ċ", " ": "Ġ"}
"""How a byte-level BPE spells the two bytes that are not printable in a vocabulary file."""


def encode(text: str) -> list[int]:
    """Return the ids that `build_tokenizer()` gives for ASCII text, without loading transformers."""
    return [_ID[c] for c in text if c in _ID]


def build_tokenizer() -> Qwen2Tokenizer:
    """Return the tokenizer. AutoTokenizer and vLLM load what its `save_pretrained` writes."""
    from transformers import Qwen2Tokenizer

    vocab = {_BYTE_LEVEL_NAME.get(c, c): i for c, i in _ID.items()} | {PAD: PAD_ID, EOS: EOS_ID}
    return Qwen2Tokenizer(
        vocab=vocab,
        merges=[],
        pad_token=PAD,
        eos_token=EOS,
        unk_token=None,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def save_tokenizer(directory: Path) -> None:
    """Write the tokenizer to `directory`."""
    build_tokenizer().save_pretrained(directory)
