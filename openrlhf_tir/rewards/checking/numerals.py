r"""Read a numeral as an exact number, without computer algebra.

Supported are integers with and without separators of thousands, decimals, repeating decimals, scientific notation,
fractions, mixed numbers and numerals with a base (101_2). A decimal is exact: 0.333333 is not 1/3.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

MAX_EXPONENT = 10_000
"""Scientific notation beyond this power of ten is not read: 1e999999999 would be worked out to all its digits."""

_GROUPED = r"\d{1,3}(?:,\d{3}){1,12}|\d{1,3}(?: \d{3}){1,12}|\d{1,3}(?:['’]\d{3}){1,12}|\d{1,3}(?:_\d{3}){1,12}"
_INTEGER = re.compile(rf"([+-]?)\s*(\d{{1,40}}|{_GROUPED}|\d{{1,3}}(?:\.\d{{3}}){{2,12}})")
"""A single full stop is a decimal point; several separate thousands."""
_DECIMAL = re.compile(rf"([+-]?)\s*((?:\d{{1,40}}|{_GROUPED})\.\d{{0,40}}|\.\d{{1,40}})")
_SCIENTIFIC = re.compile(
    r"([+-]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40}))(?:"
    r"[eE]([+-]?\d{1,9})|\s*\\(?:times|cdot)\s*10\s*\^\s*(?:\{\s*([+-]?\d{1,9})\s*\}|([+-]?\d{1,9})))"
)
_REPEATING = re.compile(
    r"([+-]?)(\d{0,20})\.(\d{0,20})(?:\\(?:overline|bar|dot)\s*\{\s*(\d{1,20})\s*\}|\\(?:overline|bar|dot)\s*(\d)|\((\d{1,20})\))"
)
_DOTTED = re.compile(r"([+-]?)(\d{0,20})\.(\d{0,20}?)(\d{1,20}?)\4{2,20}\s*\\ldots")
"""A decimal that goes on: its period is written three times at least."""
_PREFIXED = re.compile(r"0(?:[xX]([0-9a-fA-F]{1,50})|[bB]([01]{1,200})|[oO]([0-7]{1,70}))")
_FRACTION = re.compile(
    r"([+-]?)\s*(?:\\[dtc]?frac\s*\{\s*([+-]?\d{1,40})\s*\}\s*\{\s*([+-]?\d{1,40})\s*\}|(\d{1,40})\s*/\s*(\d{1,40}))"
)
_MIXED = re.compile(
    r"([+-]?)\s*(\d{1,40})\s*(?:\\[dtc]?frac\s*\{\s*(\d{1,40})\s*\}\s*\{\s*(\d{1,40})\s*\}|(?<=\s)(\d{1,40})\s*/\s*(\d{1,40}))"
)
_BASED = re.compile(r"([+-]?)\(?([0-9A-Za-z]{1,200})\)?_\s*(?:\{\s*(\d{1,2})\s*\}|(\d))")


class Number(NamedTuple):
    """The value of a numeral. `exact` is False for a decimal, which may be a rounded number."""

    value: Fraction
    exact: bool


def number(text: str) -> Number | None:
    """Return the number that `text` as a whole writes, or None if it is not a plain numeral."""
    if m := _INTEGER.fullmatch(text):
        return Number(_signed(m[1], Fraction(re.sub(r"\D", "", m[2]))), True)
    if m := _DECIMAL.fullmatch(text):
        return Number(_signed(m[1], Fraction(_digits(m[2]))), False)
    if m := _SCIENTIFIC.fullmatch(text):
        exponent = int(m[2] or m[3] or m[4])
        return Number(Fraction(m[1]) * Fraction(10) ** exponent, False) if abs(exponent) <= MAX_EXPONENT else None
    if m := _REPEATING.fullmatch(text):
        return Number(_signed(m[1], _repeating(m[2], m[3], m[4] or m[5] or m[6])), True)
    if m := _DOTTED.fullmatch(text):
        return Number(_signed(m[1], _repeating(m[2], m[3], m[4])), True)
    if m := _PREFIXED.fullmatch(text):
        return Number(Fraction(int(text, 0)), True)
    if m := _FRACTION.fullmatch(text):
        return _fraction(m[1], 0, int(m[2] or m[4]), int(m[3] or m[5]))
    if m := _MIXED.fullmatch(text):
        top = int(m[3] or m[5])
        bottom = int(m[4] or m[6])
        return _fraction(m[1], int(m[2]), top, bottom) if top < bottom else None
    if m := _BASED.fullmatch(text):
        return _based(m[1], m[2], int(m[3] or m[4]))
    return None


def _digits(text: str) -> str:
    return re.sub(r"[^\d.]", "", text)


def _signed(sign: str, value: Fraction) -> Fraction:
    return -value if sign == "-" else value


def _fraction(sign: str, whole: int, top: int, bottom: int) -> Number | None:
    return Number(_signed(sign, whole + Fraction(top, bottom)), True) if bottom else None


def _repeating(whole: str, fixed: str, period: str) -> Fraction:
    """Return whole.fixed period period period ... as a fraction."""
    places = 10 ** len(fixed)
    start = Fraction(int(whole or "0")) + Fraction(int(fixed or "0"), places)
    return start + Fraction(int(period), places * (10 ** len(period) - 1))


def _based(sign: str, digits: str, base: int) -> Number | None:
    """Return the value of a numeral with a base; None if a digit is none of the base, as in x_2 or 3_2.

    One that begins with a letter is a numeral only in capitals and in a base that is usual for such: A_{12} is a name.
    """
    is_usual = digits[0].isdigit() or (digits.isupper() and base == 16)
    if not is_usual or not 2 <= base <= 36:
        return None
    try:
        return Number(_signed(sign, Fraction(int(digits, base))), True)
    except ValueError:
        return None
