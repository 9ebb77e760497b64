"""Upper bounds of an answer's score, where reasoning-gym's own scorer checks too little.

They were found by scoring a few dozen constant texts, parts of the question, and the solutions of other puzzles on
every data set (0.1.25): these gave 1, or most of it, to texts that solve nothing. A policy finds such texts sooner or
later.

    coin_flip             compares as many digits as the shorter number has: 0 is the beginning of 0.3125
    complex_arithmetic    no distance to nan is large: min(1.0, nan) is 1.0
    countdown, puzzle24   any formula: other numbers than those of the puzzle, as in pi/pi + pi/pi, are not noticed
    game_of_life_halting  compares bool(text), which is True for every text, also for "False"
    knights_knaves        half of two persons counted as one: "Ada is a hero, and Ada is a villain"
    puzzle24              any four numbers that make 24, or 24.9, not those of the puzzle
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from itertools import takewhile
from typing import Any

MIN_SCORE = 0.01
"""Score that puzzle24 and countdown give to a wrong answer, or one without a number."""
FOUR_RULES = re.compile(r"(?!.*(\*\s*\*|/\s*/))[0-9+*/()\s-]*", re.DOTALL)
"""Numbers, the four basic operations and brackets; no power and no floor division."""
PROBABILITY_TOLERANCE = 1e-4
"""Tolerance of the package's own scorer."""


def _without_nan(answer: str, entry: dict[str, Any]) -> float:
    return 0.0 if "nan" in answer.lower() else 1.0


def _same_truth_value(answer: str, entry: dict[str, Any]) -> float:
    return float(answer.strip().lower() == str(entry["answer"]).lower())


def _by_the_four_rules(answer: str, entry: dict[str, Any]) -> float:
    return 1.0 if FOUR_RULES.fullmatch(answer) else MIN_SCORE


def _probability(answer: str, entry: dict[str, Any]) -> float:
    """Return the share of the longer number's digits that agree, from the first on. Raises ValueError for text."""
    value, right = (float(Fraction(text.replace(",", ""))) for text in (answer, str(entry["answer"])))
    if not value:
        return float(value == right)
    if abs(value - right) <= PROBABILITY_TOLERANCE:
        return 1.0
    texts = [f"{number:.10g}" for number in (value, right)]
    if all(text.startswith("0.") for text in texts):
        texts = [text.removeprefix("0.") for text in texts]
    agree = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False)))
    return agree / max(map(len, texts))


def _each_once(answer: str, entry: dict[str, Any]) -> float:
    """Return 1 if the answer names each person of the puzzle exactly once."""
    from reasoning_gym.logic.knights_knaves import KnightsKnavesDataset

    named, right = (
        sorted(name for name, _ in KnightsKnavesDataset._normalize_answer(text)) for text in (answer, entry["answer"])
    )
    return float(named == right)


def _given_numbers(answer: str, entry: dict[str, Any]) -> float:
    """Return 1 if the answer makes 24 of the puzzle's numbers.

    The text is evaluated, so the guard must be installed. Raises what the parser raises.
    """
    from sympy.parsing.sympy_parser import parse_expr

    if not FOUR_RULES.fullmatch(answer):
        return MIN_SCORE
    if sorted(map(int, re.findall(r"\d+", answer))) != sorted(entry["metadata"]["numbers"]):
        return MIN_SCORE
    return 1.0 if parse_expr(answer) == 24 else MIN_SCORE


SCORE_BOUNDS: dict[str, Callable[[str, dict[str, Any]], float]] = {
    "coin_flip": _probability,
    "complex_arithmetic": _without_nan,
    "countdown": _by_the_four_rules,
    "game_of_life_halting": _same_truth_value,
    "knights_knaves": _each_once,
    "puzzle24": _given_numbers,
}
"""Bound of each data set that needs one: a function of answer and entry that returns a score of at most 1.0."""
