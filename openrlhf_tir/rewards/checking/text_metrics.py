"""Text metrics of ZeroTIR: text -> number. Repetition by characters and by words, keywords, and the soft length
penalty.

Sources: env/common/{repeatness,repetition_penalty_reward,key_pattern,length_penalty}.py of the reference; DAPO (arXiv
2503.14476) equation 13 for the length penalty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

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
"""The keywords as the reference has them: a missing comma joins two words, and " wait" begins with a space, so that it
must follow a mark."""


def suffix_ranks(text: str) -> np.ndarray:
    """[n] rank of every suffix of `text` in lexical order, by prefix doubling: O(n log^2 n)."""
    codes = np.array([ord(c) for c in text], np.int64)
    rank = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    n, k = len(rank), 1
    while k < n and rank.max() < n - 1:
        second = np.full(n, -1, np.int64)
        second[:-k] = rank[k:]
        rank = np.unique(rank * (n + 1) + second + 1, return_inverse=True)[1].astype(np.int64)
        k *= 2
    return rank


def repeatness(text: str) -> float:
    """2 * sum of the longest common prefixes of neighbouring suffixes / (n (n + 1)), in characters; near 1: a loop."""
    n = len(text)
    if n <= 1:
        return 0.0
    rank = suffix_ranks(text)
    order = np.empty(n, np.int64)
    order[rank] = np.arange(n)
    after = np.append(order[1:], n)[rank].tolist()  # the suffix that follows suffix i; n: none
    total = common = 0
    for i in range(n):  # Kasai: from suffix i to i + 1 the common prefix shrinks by at most one
        j = after[i]
        if j == n:
            common = 0
            continue
        while i + common < n and j + common < n and text[i + common] == text[j + common]:
            common += 1
        total += common
        common = max(common - 1, 0)
    return 2 * total / (n * (n + 1))


def repeated_ngrams(words: Sequence[str], n: int = 3) -> float:
    """Share of the n-grams that occurred before: 1 - distinct / all; 0 for fewer than n words."""
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def keyword_flags(text: str, keywords: Mapping[str, Sequence[str]] = KEYWORDS) -> dict[str, float]:
    """1.0 per kind of keyword that occurs as a whole word, ignoring case.

    Only ASCII letters, digits and "_" are word characters, a match uses up the mark after it, as in flashtext."""
    kind_of = {word: kind for kind, words in keywords.items() for word in words}
    longest_first = "|".join(re.escape(w) for w in sorted(kind_of, key=len, reverse=True))
    pattern = re.compile(rf"(?<![a-z0-9_])({longest_first})(?:[^a-z0-9_]|$)")
    found = {kind_of[m[1]] for m in pattern.finditer(text.lower())}
    return {kind: float(kind in found) for kind in keywords}


def soft_overlong(length: int, max_length: int, cache: int = 512) -> float:
    """0 up to max_length - cache tokens, then linear, -1 from max_length on."""
    return max(-1.0, min(0.0, (max_length - cache - length) / cache))
