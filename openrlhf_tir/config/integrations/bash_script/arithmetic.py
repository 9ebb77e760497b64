"""Arithmetic of whole numbers, as `$((...))` has it."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

_TOKEN = re.compile(r"\s*(0[xX][0-9a-fA-F]+|\d+|\*\*|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>&|^~!?:()])")
_BITS = 64


def _quotient(a: int, b: int) -> int:
    """Divide as C does: the fraction is cut off, whatever the signs."""
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


BINARY: dict[str, tuple[int, Callable[[int, int], int]]] = {
    "||": (1, lambda a, b: int(bool(a) or bool(b))),
    "&&": (2, lambda a, b: int(bool(a) and bool(b))),
    "|": (3, operator.or_),
    "^": (4, operator.xor),
    "&": (5, operator.and_),
    "==": (6, lambda a, b: int(a == b)),
    "!=": (6, lambda a, b: int(a != b)),
    "<": (7, lambda a, b: int(a < b)),
    "<=": (7, lambda a, b: int(a <= b)),
    ">": (7, lambda a, b: int(a > b)),
    ">=": (7, lambda a, b: int(a >= b)),
    "<<": (8, operator.lshift),
    ">>": (8, operator.rshift),
    "+": (9, operator.add),
    "-": (9, operator.sub),
    "*": (10, operator.mul),
    "/": (10, _quotient),
    "%": (10, lambda a, b: a - b * _quotient(a, b)),
}
"""Operator -> how tightly it binds, and what it does. `**` and `?:` are read apart: they group from the right."""


def calculate(text: str) -> int:
    """Return the value of an expression of whole numbers with the operators of bash.

    Raises:
        ValueError: It is no such expression, or too large for bash's integers.
        ArithmeticError: It divides by zero.
    """
    tokens = _tokens(text)
    value = _choice(tokens)
    if tokens:
        raise ValueError(text)
    return value


def _tokens(text: str) -> list[str]:
    """Return the tokens of an expression, the first one last, so that the next one is popped."""
    tokens: list[str] = []
    at = 0
    text = text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(text)
        tokens.append(match[1])
        at = match.end()
    return tokens[::-1]


def _choice(tokens: list[str]) -> int:
    """Read `a ? b : c`, or what binds more tightly."""
    condition = _binary(tokens, 1)
    if not _take(tokens, "?"):
        return condition
    first = _choice(tokens)
    if not _take(tokens, ":"):
        raise ValueError("? without :")
    second = _choice(tokens)
    return first if condition else second


def _binary(tokens: list[str], least: int) -> int:
    """Read operators that bind at least as tightly as `least`, from the left."""
    value = _power(tokens)
    while tokens and tokens[-1] in BINARY and BINARY[tokens[-1]][0] >= least:
        binds, compute = BINARY[tokens.pop()]
        value = _bounded(compute, value, _binary(tokens, binds + 1))
    return value


def _power(tokens: list[str]) -> int:
    """Read `a ** b`, which groups from the right and binds less tightly than a sign: -2 ** 2 is 4 in bash."""
    value = _unary(tokens)
    if _take(tokens, "**"):
        return _bounded(operator.pow, value, _power(tokens))
    return value


def _unary(tokens: list[str]) -> int:
    """Read a value with its signs."""
    for sign, compute in (("-", operator.neg), ("+", operator.pos), ("~", operator.invert), ("!", operator.not_)):
        if _take(tokens, sign):
            return int(compute(_unary(tokens)))
    return _operand(tokens)


def _operand(tokens: list[str]) -> int:
    """Read a number, or an expression in brackets."""
    if _take(tokens, "("):
        value = _choice(tokens)
        if not _take(tokens, ")"):
            raise ValueError("( without )")
        return value
    if not tokens or not tokens[-1][0].isdecimal():
        raise ValueError("an operand is missing")
    word = tokens.pop()
    octal = len(word) > 1 and word.isdecimal() and word[0] == "0"
    return int(word, 8 if octal else 0)


def _take(tokens: list[str], token: str) -> bool:
    """Remove the next token if it is this one, and return whether it was."""
    if tokens and tokens[-1] == token:
        tokens.pop()
        return True
    return False


def _bounded(compute: Callable[[int, int], int], a: int, b: int) -> int:
    """Compute a value, and refuse one that would be large enough to take time or memory."""
    large = compute in (operator.pow, operator.lshift) and (b >= _BITS or abs(a) >> _BITS)
    if large or (b < 0 and compute in (operator.pow, operator.lshift, operator.rshift)):
        raise ValueError("no integer of bash's")
    return compute(a, b)
