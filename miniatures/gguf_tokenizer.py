"""Gemma's tokenizer from the vocabulary of a GGUF file.

transformers' own reading takes the scores of the pieces for a unigram model's log-probs. They are ranks of merges, so
that it cuts a text into other pieces than the model was trained with, and nothing fails.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
"""Types of a token in a GGUF: one that merges make, a special one, and a text that is always a token of its own."""


def pieces_of(source: Path) -> tuple[list[str], list[float], list[int]]:
    """Return the texts of a GGUF's vocabulary, their scores and their types."""
    from gguf import GGUFReader

    fields = GGUFReader(source).fields
    texts, scores, types = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "scores", "token_type"))
    return texts, scores, types


def tokenizer_from_pieces(
    texts: list[str], scores: list[float], types: list[int], special_tokens: dict[str, str]
) -> Any:
    """Return Gemma's tokenizer, which merges pairs by the scores of their pieces.

    Args:
        texts: The piece of each token id.
        scores: Minus the rank of each ordinary piece.
        types: GGUF's type of each piece.
        special_tokens: Named special tokens, by the name of the tokenizer's argument.
    """
    import transformers
    from transformers.convert_slow_tokenizer import generate_merges

    blank = "\u2581"
    # Runs of blanks, newlines and tabs.
    runs = {i for i, text in enumerate(texts) if types[i] == USER_DEFINED and not text.strip()}
    names = [text.replace(" ", blank) if i in runs else text for i, text in enumerate(texts)]
    vocabulary = {name: i for i, name in enumerate(names)}
    # A run is never cut: its merges come before all others, the longest first.
    ranks = {name: scores[i] for i, name in enumerate(names) if types[i] == NORMAL} | {names[i]: 1.0 for i in runs}
    tokenizer = transformers.GemmaTokenizer(
        vocab=vocabulary, merges=generate_merges(vocabulary, ranks), add_bos_token=True, **special_tokens
    )
    tokenizer.add_tokens(
        [
            transformers.AddedToken(text, special=types[i] == CONTROL, normalized=False)
            for i, text in enumerate(names)
            if types[i] in (CONTROL, USER_DEFINED) and i not in runs
        ]
    )
    return tokenizer
