"""Compute ZeroTIR's metrics of a text: repetition by characters and by words, keywords, and the soft length penalty.

Sources: env/common/{repeatness,repetition_penalty_reward,key_pattern,length_penalty}.py of the reference; DAPO (arXiv
2503.14476) equation 13 for the length penalty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

REFLECTION = (
    "rethink", "re-think", "recheck", "re-check", "double check", "try again", "re-evaluate", "check again",
    "let's correct it", "verify this step", "let's think again", "let's check", "核实", "验证", "检查", "稍等",
)  # fmt: skip
NEW_IDEA = (
    "alternatively", "try another", "use different", "find a new way", "reframe", "reimagine", "reconsider",
    "re-envision", "改进", "重新思考", "重新构想", "新思路", "wait",
)  # fmt: skip
KEYWORDS: dict[str, tuple[str, ...]] = {"reflection": REFLECTION, "new_idea": NEW_IDEA}

OFFICIAL_KEYWORDS: dict[str, tuple[str, ...]] = {
    "reflection": (*(w for w in REFLECTION if w not in ("re-think", "recheck")), "re-thinkrecheck"),
    "new_idea": (*(w for w in NEW_IDEA if w != "wait"), " wait"),
}
"""The reference's keywords. A missing comma joins two of them, and " wait" begins with a space, so that it must follow
a mark."""


def repeatness(text: str) -> float:
    """Return how much a text repeats itself, in [0, 1]. A value near 1 is a loop.

    It is 2 * (sum of the longest common prefixes of neighbouring suffixes) / (n (n + 1)) for n characters.
    """
    from pydivsufsort import divsufsort, kasai  # imported here, since the other functions do without the `cpu` extra

    n = len(text)
    if n <= 1:
        return 0.0
    codes = _codes(text)
    common = kasai(codes, divsufsort(codes))
    return 2 * int(common.sum(dtype=np.int64)) / (n * (n + 1))


def _codes(text: str) -> np.ndarray:
    """Return [n] a number for each character, as bytes if these suffice."""
    if text.isascii():
        return np.frombuffer(bytearray(text.encode()), np.uint8)  # the library needs writable memory
    symbols, codes = np.unique(np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4"), return_inverse=True)
    return codes.astype(np.uint8 if len(symbols) <= 256 else np.uint32)


def repeated_ngrams(tokens: Sequence[str], n: int = 3) -> float:
    """Return the share of n-grams that occurred before: 1 - distinct / all; 0 for fewer than n words."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def keyword_flags(text: str, keywords: Mapping[str, Sequence[str]] = KEYWORDS) -> dict[str, float]:
    """Return 1.0 for each kind of keyword that occurs as a whole word, ignoring case, and 0.0 for the others.

    Only ASCII letters, digits and "_" are word characters, and a match consumes the mark after it, as in flashtext.
    """
    kind_of = {word: kind for kind, words in keywords.items() for word in words}
    kinds_found = {kind_of[m[1]] for m in _any_of(tuple(kind_of)).finditer(text.lower())}
    return {kind: float(kind in kinds_found) for kind in keywords}


@lru_cache
def _any_of(words: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern that matches each of the words."""
    longest_first = "|".join(re.escape(w) for w in sorted(words, key=len, reverse=True))
    return re.compile(rf"(?<![a-z0-9_])({longest_first})(?:[^a-z0-9_]|$)")


def soft_overlong(length: int, max_length: int, cache: int = 512) -> float:
    """Return the length penalty: 0 up to max_length - cache tokens, then linear, -1 from max_length on."""
    return max(-1.0, min(0.0, (max_length - cache - length) / cache))
