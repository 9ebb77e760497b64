"""Decide by their values whether two sympy expressions are equal: to many digits, and at several points if they have
variables. An undecided comparison is not equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

DIGITS = 60
"""Digits to which constants are compared first. Equal ones are compared to many more, see `_reach`."""
POINTS = ("7/5", "-13/11", "31/7", "-37/100", "29/10", "5/13", "-41/9")
"""Values that are substituted for a variable. Two expressions that agree wherever both are real are equal."""
MIN_POINTS = 3
"""Number of points at which both must be real, and agree."""
MAX_REACH = 2_000
"""Digits of the numbers and powers in two expressions that are compared by their values. With more, they could differ
behind all digits that are computed, and count as different."""


def same_value(a: Any, b: Any) -> bool:
    """Return True if two sympy expressions are equal wherever both are defined."""
    import sympy

    if a == b:
        return True
    if a.is_Rational and b.is_Rational:
        return False
    if a.is_infinite or b.is_infinite:
        return False
    symbols = sorted(a.free_symbols | b.free_symbols, key=str)
    reach = _reach(a, b)
    if reach > MAX_REACH:
        return False
    if not symbols:
        return _same_constant(a, b, 4 * (DIGITS + reach))
    digits = DIGITS // 2 + 2 * reach
    agreed = 0
    agreed_complex = 0
    is_complex_equal = True
    for shift in range(len(POINTS)):
        point = {s: sympy.Rational(POINTS[(shift + 3 * i) % len(POINTS)]) + i for i, s in enumerate(symbols)}
        x, y = (_numeric(e.subs(point), digits) for e in (a, b))
        if x is None or y is None:
            continue
        is_real = x.is_real and y.is_real
        if not _close(x, y, digits - DIGITS // 6):
            if is_real or a.has(sympy.I) or b.has(sympy.I):
                return False
            is_complex_equal = False
            continue
        agreed += bool(is_real)
        agreed_complex += 1
    return agreed >= MIN_POINTS or (agreed_complex >= MIN_POINTS and is_complex_equal)


def constant_ratio(x: Any, y: Any) -> Any | None:
    """Return the constant c with x = c * y, or None."""
    import sympy

    symbols = sorted(x.free_symbols | y.free_symbols, key=str)
    if x.free_symbols != y.free_symbols or not symbols:
        return None
    point = {s: sympy.Rational(POINTS[i % len(POINTS)]) + 2 * i for i, s in enumerate(symbols)}
    below = y.subs(point)
    if below.is_zero:
        return None
    factor = sympy.nsimplify(x.subs(point) / below)
    return factor if factor.is_real and not factor.is_zero and same_value(x, factor * y) else None


def can_be_paired(a: Sequence[Any], b: Sequence[Any], same: Callable[[Any, Any], bool]) -> bool:
    """Return True if the items can be paired. Equality is transitive, so the first match is as good as any other."""
    unmatched = [*b]
    for x in a:
        at = next((i for i, y in enumerate(unmatched) if same(x, y)), None)
        if at is None:
            return False
        del unmatched[at]
    return not unmatched


def _reach(*expressions: Any) -> int:
    """Return the digits of all numbers and powers in expressions: the further, the later equal beginnings may end."""
    import sympy

    digits = 0.0
    for expression in expressions:
        for rational in expression.atoms(sympy.Rational):
            digits += (abs(rational.p).bit_length() + rational.q.bit_length()) * 0.3
        for power in expression.atoms(sympy.Pow, sympy.exp):
            base, exponent = power.as_base_exp()
            if exponent.is_number:
                size = sympy.log(abs(base.evalf(10)), 10).evalf(10) if base.is_number else 1
                digits += abs(float(abs(exponent.evalf(10)) * size))
    return int(digits)


def _same_constant(a: Any, b: Any, most_digits: int) -> bool:
    if a.is_zero or b.is_zero:
        other = b if a.is_zero else a
        return bool(other.is_zero or (other.is_zero is None and other.equals(0)))
    for digits in (DIGITS, most_digits):
        x = _numeric(a, digits)
        y = _numeric(b, digits)
        if x is None or y is None or not _close(x, y, digits - 12):
            return False
    return True


def _numeric(expression: Any, digits: int) -> Any | None:
    """Return the value of an expression to some digits; None if it has none or is infinite."""
    value = expression.evalf(digits, maxn=2 * digits)
    return value if value.is_number and value.is_finite and (value.is_comparable or value.as_real_imag()) else None


def _close(x: Any, y: Any, digits: int) -> bool:
    import sympy

    scale = max(abs(x), abs(y))
    return bool(scale == 0 or abs(x - y) <= scale * sympy.Float(10) ** -digits)
