"""Mends: what an answer may score at most, where reasoning-gym's own scorer forgets to look. (answer, entry) -> a
bound, 1.0 or less.

Found by scoring a few dozen constant texts, and the solutions of other puzzles, on every data set (0.1.25): these gave
1 to texts that solve nothing. A policy finds such texts sooner or later.

    complex_arithmetic    no distance to nan is large: min(1.0, nan) is 1.0
    game_of_life_halting  compares bool(text), which is True of every text, "False" too
    puzzle24              any four numbers that make 24, or 24.9, not the ones that are given
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

NOTHING = 0.01
"""What puzzle24 gives to a wrong answer."""


def _number(answer: str, entry: dict[str, Any]) -> float:
    return 0.0 if "nan" in answer.lower() else 1.0


def _truth(answer: str, entry: dict[str, Any]) -> float:
    return float(answer.strip().lower() == str(entry["answer"]).lower())


def _given_numbers(answer: str, entry: dict[str, Any]) -> float:
    """Behind the guard, or not at all: the text is evaluated. Raises what the parser raises."""
    from sympy.parsing.sympy_parser import parse_expr

    if sorted(map(int, re.findall(r"\d+", answer))) != sorted(entry["metadata"]["numbers"]):
        return NOTHING
    return 1.0 if parse_expr(answer) == 24 else NOTHING


MENDS: dict[str, Callable[[str, dict[str, Any]], float]] = {
    "complex_arithmetic": _number,
    "game_of_life_halting": _truth,
    "puzzle24": _given_numbers,
}
