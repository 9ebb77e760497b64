"""Answer check: (answer, gold) -> equal or not. Same string, then exact arithmetic, then computer algebra, cheapest
first.

Only the last can hang, so only it goes through `ask` (see the package's docstring). Bad answers are data: nothing here
raises because of what an answer says.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from .. import Ask, on_the_spot
from . import symbolic

MAX_CHARS = 2000
"""An answer longer than this is only compared as a string: no gold is that long, and parsing costs the deadline."""

NEAR = Fraction(1, 10**5)
"""Decimals nearer than this are left to math-verify, which rounds to six places; further apart they differ there."""

_INTEGER = re.compile(r"([+-]?)(\d{1,40}|\d{1,3}(?:,\d{3}){1,12})")
_DECIMAL = re.compile(r"[+-]?(?:\d{1,40}\.\d{0,40}|\.\d{1,40})")
_FRACTION = re.compile(r"([+-]?)(?:\\[dt]?frac\{([+-]?\d{1,40})\}\{([+-]?\d{1,40})\}|(\d{1,40})/(\d{1,40}))")


class Number(NamedTuple):
    value: Fraction
    exact: bool
    """False where it was written as a decimal, which may be a rounded one."""


def clean(text: str) -> str:
    """Without the white space and math delimiters around it."""
    text = text.strip()
    for left, right in (("$$", "$$"), ("$", "$"), (r"\(", r"\)")):
        inner = text[len(left) : -len(right)]
        if text.startswith(left) and text.endswith(right) and len(text) > len(left) + len(right) and "$" not in inner:
            return inner.strip()
    return text


def number(text: str) -> Number | None:
    """The plain numeral that `text` is, or None."""
    if m := _INTEGER.fullmatch(text):
        return Number(Fraction(m[1] + m[2].replace(",", "")), True)
    if _DECIMAL.fullmatch(text):
        return Number(Fraction(text), False)
    if m := _FRACTION.fullmatch(text):
        top, bottom = int(m[2] or m[4]), int(m[3] or m[5])
        if bottom:
            return Number(Fraction(top, bottom) * (-1 if m[1] == "-" else 1), True)
    return None


def quick_equal(answer: str, gold: str) -> bool | None:
    """What strings and exact arithmetic can tell, in microseconds; None where computer algebra must decide."""
    a, b = clean(answer), clean(gold)
    if not a or not b:
        return False
    if a == b:
        return True
    x, y = number(a), number(b)
    if x and y:
        if x.value == y.value:
            return True
        return None if not (x.exact and y.exact) and abs(x.value - y.value) < NEAR else False
    return False if len(a) > MAX_CHARS else None


def equal(answer: str, gold: str, ask: Ask = on_the_spot) -> bool:
    """Whether both mean the same."""
    verdict = quick_equal(answer, gold)
    return ask(symbolic.equal, clean(answer), clean(gold)) if verdict is None else verdict
