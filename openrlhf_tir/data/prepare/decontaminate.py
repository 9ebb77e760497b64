"""Find the training problems that are, in part or whole, among evaluation problems.

    words          of the question: letters, digits and single other signs, ignoring case, spacing and different ways to
                   encode the same sign (NFKC). Scripts without spaces have a word for each sign
    n-grams        of `n` words; a problem with fewer words is one n-gram
    wording        n-grams that more than 1 in 10 of the distinct training texts hold (instructions, not problems) are
                   not counted
    overlap        the share of an evaluation problem's n-grams that a training problem holds
    contaminated   the overlap with some evaluation problem is at least `share`, or the words are the same

n = 8 and one half follow Tülu 3 (arXiv 2411.15124, section 3.2, which counts tokens); n = 13 and any overlap (share 0)
are GPT-3's.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import xxhash

from ..prompts import Problem

WORDING = 0.1
"""An n-gram in a larger share of the distinct training texts is the data set's wording."""
FEWEST = 20
"""With fewer texts no n-gram is taken for wording."""
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, kana and Chinese characters: sentences have no spaces between words."""
WORD = re.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+|[^\w\s]")


class Match(NamedTuple):
    """An evaluation problem that a training problem resembles.

    Attributes:
        place: File and line of the evaluation problem.
        share: Share of its n-grams that were found; 1 for the same words.
        text: Its text.
    """

    place: str
    share: float
    text: str


def question_of(prompt: Any) -> str:
    """Return the question of a problem: its text, or the users' messages. A system message holds only instructions."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(m["content"] for m in prompt if m.get("role") == "user" and isinstance(m.get("content"), str))


def words(text: str) -> list[str]:
    """Return the words of a text in a normal form."""
    if not text.isascii():  # Normalised twice, because folded characters may compose again.
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return WORD.findall(text.lower())


def grams(sequence: Sequence[str], n: int) -> set[int]:
    """Return hashes of the n-grams of a sequence of words."""
    return (
        {
            xxhash.xxh3_64_intdigest(" ".join(sequence[start : start + n]).encode())
            for start in range(max(1, len(sequence) - n + 1))
        }
        if sequence
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
            problem_words = words(question_of(problem.input))
            if problem_words:  # A chat without a user's message resembles no other.
                self._same.setdefault(_whole(problem_words), len(self.places))
            self.places.append(problem.where)
            self.texts.append(question_of(problem.input))
            self._grams.append(grams(problem_words, n))
            for gram in self._grams[-1]:
                self._with[gram].append(len(self.places) - 1)

    def __len__(self) -> int:
        return len(self.places)

    def learn_wording(self, texts: Iterable[str]) -> int:
        """Leave out the n-grams that many of the training texts hold; a repeated text counts once.

        Returns:
            The number of n-grams of the evaluation problems that are left out.
        """
        seen: Counter[int] = Counter()
        different: set[int] = set()
        for text in texts:
            text_words = words(text)
            if (text_hash := _whole(text_words)) not in different:
                different.add(text_hash)
                seen.update(gram for gram in grams(text_words, self.n) if gram in self._with)
        rows = len(different)
        self._wording = {gram for gram, count in seen.items() if rows >= FEWEST and count > WORDING * rows}
        return len(self._wording)

    def match(self, text: str, share: float) -> Match | None:
        """Return the evaluation problem with the largest overlap, if that is at least `share` and above 0."""
        text_words = words(text)
        if (equal_problem := self._same.get(_whole(text_words))) is not None:
            return Match(self.places[equal_problem], 1.0, self.texts[equal_problem])
        shared: Counter[int] = Counter()
        for gram in grams(text_words, self.n) - self._wording:
            shared.update(self._with.get(gram, ()))
        best: Match | None = None
        for number, count in shared.items():
            overlap = count / len(self._grams[number] - self._wording)
            if overlap >= share and (best is None or overlap > best.share):
                best = Match(self.places[number], overlap, self.texts[number])
        return best


def _whole(text_words: Sequence[str]) -> int:
    return xxhash.xxh3_64_intdigest(" ".join(text_words).encode())
