r"""maj@k of one problem: how often the commonest answer of k samples is right. Wang et al. 2022 (self-consistency),
arXiv 2203.11171.

The mean over k-subsets of the n samples: over all of them up to MOST_SUBSETS, else over so many random ones, drawn with
a seed of the problem's own. Answers vote by their text without white space, $, \text{} and a last full stop; numbers by
value (0.50 and .5 are one, 1/2 another). Samples without an answer do not vote. Of answers with equally many votes each
is taken as likely; where nobody votes the subset is wrong. An answer is worth the share of its samples that were judged
right: one text may be right in one sample and cut off, hence wrong, in another."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations
from math import comb

import numpy as np

MOST_SUBSETS = 1000
_NOISE = re.compile(r"\\text(?:bf|rm)?\s*\{([^{}]*)\}")
_IGNORED = re.compile(r"\s+|\$|\\[,;!]")
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?")
MAX_CHARS = 200
"""The length of an answer's text that votes: whoever rambles into the box has an answer of their own anyhow."""


def ballot(answer: str | None) -> str | None:
    """What an answer votes as; None where it does not vote."""
    if answer is None:
        return None
    text = _IGNORED.sub("", _NOISE.sub(r"\1", answer[:MAX_CHARS])).rstrip(".").lower()
    if text and _NUMBER.fullmatch(text) and any(c.isdigit() for c in text):
        number = text.replace(",", "").lstrip("+")
        whole, _, part = number.lstrip("-").partition(".")
        digits = (whole.lstrip("0") or "0") + (f".{part.rstrip('0')}" if part.strip("0") else "")
        return f"-{digits}" if number.startswith("-") and digits != "0" else digits
    return text or None


def maj_at_k(answers: Sequence[str | None], correct: Sequence[bool], k: int, *, seed: int = 0) -> float:
    """`answers` and `correct` [n]. Raises ValueError unless 1 <= k <= n and they are equally many."""
    n = len(answers)
    if len(correct) != n or not 1 <= k <= n:
        raise ValueError(
            f"{n} answers, {len(correct)} verdicts and k = {k}: wanted as many verdicts as answers, and 1 <= k <= n."
        )
    votes = [ballot(a) for a in answers]
    cast = Counter(v for v in votes if v is not None)
    right = Counter(v for v, ok in zip(votes, correct, strict=True) if v is not None and ok)
    worth = {v: right[v] / count for v, count in cast.items()}
    outcomes = [_outcome([votes[i] for i in subset], worth) for subset in _subsets(n, k, seed)]
    return sum(outcomes) / len(outcomes)


def _subsets(n: int, k: int, seed: int) -> Iterable[Sequence[int]]:
    if comb(n, k) <= MOST_SUBSETS:
        return combinations(range(n), k)
    rng = np.random.default_rng(seed)
    return [rng.choice(n, k, replace=False).tolist() for _ in range(MOST_SUBSETS)]


def _outcome(votes: Sequence[str | None], worth: dict[str, float]) -> float:
    counts = Counter(v for v in votes if v is not None)
    if not counts:
        return 0.0
    most = max(counts.values())
    leaders = [v for v, count in counts.items() if count == most]
    return sum(worth[v] for v in leaders) / len(leaders)
