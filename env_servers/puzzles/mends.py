"""Mends: what an answer may score at most, where reasoning-gym's own scorer forgets to look. (answer, entry) -> a
bound, 1.0 or less.

Found by scoring a few dozen constant texts, parts of the question, and the solutions of other puzzles, on every data
set (0.1.25): these gave 1, or most of it, to texts that solve nothing. A policy finds such texts sooner or later.

    coin_flip             compares as many digits as the shorter number has: 0 is the beginning of 0.3125
    complex_arithmetic    no distance to nan is large: min(1.0, nan) is 1.0
    countdown, puzzle24   any formula: numbers beside those that are given, as in pi/pi + pi/pi, are not seen
    game_of_life_halting  compares bool(text), which is True of every text, "False" too
    knights_knaves        half of two who are one: "Ada is a hero, and Ada is a villain"
    puzzle24              any four numbers that make 24, or 24.9, not the ones that are given
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from itertools import takewhile
from typing import Any

NOTHING = 0.01
"""What puzzle24 and countdown give to a wrong answer, or one without a number."""
FOUR_RULES = re.compile(r"(?!.*(\*\s*\*|/\s*/))[0-9+*/()\s-]*", re.DOTALL)
PROBABILITY_TOLERANCE = 1e-4
"""The package's own."""


def _number(answer: str, entry: dict[str, Any]) -> float:
    return 0.0 if "nan" in answer.lower() else 1.0


def _truth(answer: str, entry: dict[str, Any]) -> float:
    return float(answer.strip().lower() == str(entry["answer"]).lower())


def _by_the_four_rules(answer: str, entry: dict[str, Any]) -> float:
    return 1.0 if FOUR_RULES.fullmatch(answer) else NOTHING


def _probability(answer: str, entry: dict[str, Any]) -> float:
    """The share of the longer number's digits that agree from the first on. Raises ValueError for what is no number."""
    given, right = (float(Fraction(text.replace(",", ""))) for text in (answer, str(entry["answer"])))
    if not given:
        return float(given == right)
    if abs(given - right) <= PROBABILITY_TOLERANCE:
        return 1.0
    texts = [f"{value:.10g}" for value in (given, right)]
    if all(text.startswith("0.") for text in texts):
        texts = [text.removeprefix("0.") for text in texts]
    agree = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False)))
    return agree / max(map(len, texts))


def _each_once(answer: str, entry: dict[str, Any]) -> float:
    """1 if it says of everybody who there is what they are, of each one thing."""
    from reasoning_gym.logic.knights_knaves import KnightsKnavesDataset

    said, right = (sorted(n for n, _ in KnightsKnavesDataset._normalize_answer(t)) for t in (answer, entry["answer"]))
    return float(said == right)


def _given_numbers(answer: str, entry: dict[str, Any]) -> float:
    """Behind the guard, or not at all: the text is evaluated. Raises what the parser raises."""
    from sympy.parsing.sympy_parser import parse_expr

    if not FOUR_RULES.fullmatch(answer):
        return NOTHING
    if sorted(map(int, re.findall(r"\d+", answer))) != sorted(entry["metadata"]["numbers"]):
        return NOTHING
    return 1.0 if parse_expr(answer) == 24 else NOTHING


MENDS: dict[str, Callable[[str, dict[str, Any]], float]] = {
    "coin_flip": _probability,
    "complex_arithmetic": _number,
    "countdown": _by_the_four_rules,
    "game_of_life_halting": _truth,
    "knights_knaves": _each_once,
    "puzzle24": _given_numbers,
}
