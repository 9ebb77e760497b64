"""Decontaminate: training problems and evaluation problems -> which of the first are, in part or whole, among the
second.

    words          of the text that is asked: letters, digits and single other signs; case, spacing and ways to encode
                   the same sign (NFKC) aside. Scripts that write no spaces have a word for each sign
    n-grams        of `n` words; of a problem with fewer words, all of it is one
    wording        n-grams that more than 1 in 10 of the different training texts hold (instructions, not problems) are
                   not counted
    overlap        the share of an evaluation problem's n-grams that a training problem holds
    contaminated   the overlap with some evaluation problem is at least `share`, or the words are the same

n = 8 and one half are after Tülu 3 (arXiv 2411.15124, section 3.2, which counts tokens); n = 13 and any overlap (share
0) is GPT-3's."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import xxhash

from ..prompts import Problem

WORDING = 0.1
"""Share of the different training texts from which on an n-gram is the data set's wording."""
FEWEST = 20
"""Texts below which nothing can be told to be wording."""
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, kana and Chinese characters: a sentence has no spaces between its words."""
WORD = re.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+|[^\w\s]")


class Match(NamedTuple):
    """`place`: of the evaluation problem; `share`: of its n-grams that were found, 1 for the same words."""

    place: str
    share: float
    text: str


def asked(given: Any) -> str:
    """What a problem asks: its text, or what users say in its messages. Instructions of a system message are none."""
    if isinstance(given, str):
        return given
    return "\n".join(m["content"] for m in given if m.get("role") == "user" and isinstance(m.get("content"), str))


def words(text: str) -> list[str]:
    if not text.isascii():  # twice: what is folded may be composed again
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return WORD.findall(text.lower())


def grams(of: Sequence[str], n: int) -> set[int]:
    """Hashes of the n-grams."""
    return (
        {xxhash.xxh3_64_intdigest(" ".join(of[i : i + n]).encode()) for i in range(max(1, len(of) - n + 1))}
        if of
        else set()
    )


class Evaluations:
    """The evaluation problems, by n-gram."""

    def __init__(self, problems: Iterable[Problem], n: int) -> None:
        self.n = n
        self.places: list[str] = []
        self.texts: list[str] = []
        self._grams: list[set[int]] = []
        self._with: dict[int, list[int]] = defaultdict(list)
        self._same: dict[int, int] = {}
        self._wording: set[int] = set()
        for problem in problems:
            found = words(asked(problem.input))
            if found:  # a chat without a user's message is like no other
                self._same.setdefault(_whole(found), len(self.places))
            self.places.append(problem.where)
            self.texts.append(asked(problem.input))
            self._grams.append(grams(found, n))
            for gram in self._grams[-1]:
                self._with[gram].append(len(self.places) - 1)

    def __len__(self) -> int:
        return len(self.places)

    def learn_wording(self, texts: Iterable[str]) -> int:
        """Leave out what many of the training texts hold; a text that is there several times is one. How many n-grams
        of the evaluation problems that is."""
        seen: Counter[int] = Counter()
        different: set[int] = set()
        for text in texts:
            found = words(text)
            if (whole := _whole(found)) not in different:
                different.add(whole)
                seen.update(gram for gram in grams(found, self.n) if gram in self._with)
        rows = len(different)
        self._wording = {gram for gram, k in seen.items() if rows >= FEWEST and k > WORDING * rows}
        return len(self._wording)

    def match(self, text: str, share: float) -> Match | None:
        """The evaluation problem with the largest overlap, where that is `share` or more (above 0)."""
        found = words(text)
        if (same := self._same.get(_whole(found))) is not None:
            return Match(self.places[same], 1.0, self.texts[same])
        shared: Counter[int] = Counter()
        for gram in grams(found, self.n) - self._wording:
            shared.update(self._with.get(gram, ()))
        best: Match | None = None
        for i, k in shared.items():
            overlap = k / len(self._grams[i] - self._wording)
            if overlap >= share and (best is None or overlap > best.share):
                best = Match(self.places[i], overlap, self.texts[i])
        return best


def _whole(found: Sequence[str]) -> int:
    return xxhash.xxh3_64_intdigest(" ".join(found).encode())
