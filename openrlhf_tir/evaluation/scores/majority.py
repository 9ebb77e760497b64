r"""maj@k of one problem: how often the most frequent answer among k samples is right.

Source: Wang et al. 2022 (self-consistency), arXiv 2203.11171. It is the mean over the k-subsets of the n samples: over
all of them up to MAX_SUBSETS, and otherwise over that many random ones, drawn with a seed of the problem's own.

Answers vote by their text without white space, $, \text{} and a final full stop; numbers vote by value (0.50 and .5 are
the same, 1/2 is another). Samples without an answer do not vote. If several answers have the most votes, each counts as
equally likely; if no sample votes, the subset is wrong. An answer is worth the share of its samples that were judged
right, because the same text may be right in one sample and cut off, hence wrong, in another.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations
from math import comb

import numpy as np

MAX_SUBSETS = 1000
MAX_CHARS = 200
"""Characters of an answer that vote. Longer texts are rambling, and hardly any two of them are equal."""
_TEXT_COMMAND = re.compile(r"\\text(?:bf|rm)?\s*\{([^{}]*)\}")
_IGNORED = re.compile(r"\s+|\$|\\[,;!]")
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?")


def ballot(answer: str | None) -> str | None:
    """Return the text that an answer votes for; None if it does not vote."""
    if answer is None:
        return None
    text = _IGNORED.sub("", _TEXT_COMMAND.sub(r"\1", answer[:MAX_CHARS])).rstrip(".").lower()
    if text and _NUMBER.fullmatch(text) and any(char.isdigit() for char in text):
        number = text.replace(",", "").lstrip("+")
        whole, _, fraction = number.lstrip("-").partition(".")
        digits = (whole.lstrip("0") or "0") + (f".{fraction.rstrip('0')}" if fraction.strip("0") else "")
        return f"-{digits}" if number.startswith("-") and digits != "0" else digits
    return text or None


def maj_at_k(answers: Sequence[str | None], correct: Sequence[bool], k: int, *, seed: int = 0) -> float:
    """Return maj@k of one problem.

    Args:
        answers: [n] what the samples answered; None for no answer.
        correct: [n] whether each sample was judged right.
        k: Size of the subsets.
        seed: Seed of the random subsets.

    Raises:
        ValueError: The lists differ in length, or k is not in 1..n.
    """
    n = len(answers)
    if len(correct) != n or not 1 <= k <= n:
        raise ValueError(
            f"{n} answers, {len(correct)} verdicts and k = {k}: wanted as many verdicts as answers, and 1 <= k <= n."
        )
    votes = [ballot(answer) for answer in answers]
    totals = Counter(vote for vote in votes if vote is not None)
    right = Counter(vote for vote, ok in zip(votes, correct, strict=True) if vote is not None and ok)
    worth = {vote: right[vote] / count for vote, count in totals.items()}
    outcomes = [_outcome([votes[index] for index in subset], worth) for subset in _subsets(n, k, seed)]
    return sum(outcomes) / len(outcomes)


def _subsets(n: int, k: int, seed: int) -> Iterable[Sequence[int]]:
    if comb(n, k) <= MAX_SUBSETS:
        return combinations(range(n), k)
    rng = np.random.default_rng(seed)
    return [rng.choice(n, k, replace=False).tolist() for _ in range(MAX_SUBSETS)]


def _outcome(votes: Sequence[str | None], worth: dict[str, float]) -> float:
    """Return the worth of the answer with the most votes, or the mean worth of several such answers."""
    counts = Counter(vote for vote in votes if vote is not None)
    if not counts:
        return 0.0
    max_count = max(counts.values())
    leaders = [vote for vote, count in counts.items() if count == max_count]
    return sum(worth[vote] for vote in leaders) / len(leaders)
