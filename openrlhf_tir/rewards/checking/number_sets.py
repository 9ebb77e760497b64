"""Decide whether two forms describe the same set of real numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from .answer_form import Chain, Form, Listed, Literal, Scalar, Several, Union
from .expressions import expression_of
from .values import can_be_paired, same_value

_NUMBER_SETS = {
    r"\mathbb{R}": "Reals", r"\mathbb{Z}": "Integers", r"\mathbb{N}": "Naturals",
    r"\mathbb{Q}": "Rationals",
                r"\mathbb{C}": "Complexes", r"\emptyset": "EmptySet"}  # fmt: skip
_HALF_LINE = re.compile(r"\\mathbb\{R\}(?:\^\{?([+-])\}?|_\{([<>])0\})")
"""The positive or negative numbers."""


def equal_sets(a: Form, b: Form) -> bool:
    """Return True if both describe the same set of real numbers: intervals, unions, inequalities of one variable."""
    x = _set_of(a)
    y = _set_of(b)
    if x is None or y is None:
        return False
    name, first = x
    other, second = y
    if name and other and name != other:
        return False
    return first == second or _same_pieces(first, second)


def _same_pieces(a: Any, b: Any) -> bool:
    import sympy

    def pieces(of: Any) -> list[Any]:
        parts = of.args if isinstance(of, sympy.Union) else (of,)
        points = [p for part in parts for p in (part.args if isinstance(part, sympy.FiniteSet) else ())]
        return [*(p for p in parts if not isinstance(p, sympy.FiniteSet)), *points]

    def same(p: Any, q: Any) -> bool:
        if isinstance(p, sympy.Interval) and isinstance(q, sympy.Interval):
            ends = (p.left_open, p.right_open) == (q.left_open, q.right_open)
            return ends and same_value(p.start, q.start) and same_value(p.end, q.end)
        if isinstance(p, sympy.Expr) and isinstance(q, sympy.Expr):
            return same_value(p, q)
        return bool(p == q)

    return can_be_paired(pieces(a), pieces(b), same)


def _set_of(form: Form) -> tuple[str, Any] | None:
    """Return a variable, "" if none is named, and the set of real numbers that it may be; None if the form is no
    set."""
    import sympy

    match form:
        case Listed(items, opening, closing) if opening == r"\{" and closing == r"\}":
            values = [expression_of(i.text) if isinstance(i, Scalar) else None for i in items]
            return None if None in values else ("", sympy.FiniteSet(*values))
        case Listed((Scalar(start), Scalar(end)), opening, closing) if r"\{" not in (opening, closing):
            first = expression_of(start)
            last = expression_of(end)
            if first is None or last is None or not (first.is_extended_real and last.is_extended_real):
                return None
            if not (first < last or (first == last and opening + closing == "[]")):
                return None  # a point such as (3, 1)
            return "", sympy.Interval(first, last, opening == "(", closing == ")")
        case Literal(text) | Scalar(text) if text.strip() in _NUMBER_SETS:
            return "", getattr(sympy.S, _NUMBER_SETS[text.strip()])
        case Literal(text) | Scalar(text) if half := _HALF_LINE.fullmatch(text.strip()):
            is_positive = (half[1] or half[2]) in "+>"
            return "", sympy.Interval.open(0, sympy.oo) if is_positive else sympy.Interval.open(-sympy.oo, 0)
        case Union(parts, operators):
            return _folded([_set_of(p) for p in parts], operators)
        case Several(items, "or" | "and" as word):
            # "on (0, 1) and (2, 3)" names both; "x > 1 and x < 3" is a condition
            is_list = word == "or" or all(isinstance(item, Listed) for item in items)
            operator = "union" if is_list else "intersection"
            return _folded([_set_of(i) for i in items], [operator] * (len(items) - 1))
        case Several(items, ",") if exclusions := [i for i in items if isinstance(i, Chain) and i.relations == ("!=",)]:
            # x != 1, x != 2 and x != 1, 2 and x in R, x != 3
            name = exclusions[0].terms[0]
            excluded = [_set_of(i if isinstance(i, Chain) else Chain((name, i), ("!=",))) for i in items]
            return _folded(excluded, ["intersection"] * (len(items) - 1))
        case Several(items, ",") if all(isinstance(i, Listed) for i in items):
            return _folded([_set_of(i) for i in items], ["union"] * (len(items) - 1))
        case Chain():
            return _solution(form)
    return None


def _folded(sets: Sequence[tuple[str, Any] | None], operators: Sequence[str]) -> tuple[str, Any] | None:
    known_sets = [s for s in sets if s is not None]
    names = {name for name, _ in known_sets if name}
    if len(known_sets) < len(sets) or len(names) > 1:
        return None
    result = known_sets[0][1]
    for operator, (_, other) in zip(operators, known_sets[1:], strict=True):
        if operator == "union":
            result = result.union(other)
        elif operator == "intersection":
            result = result.intersect(other)
        else:
            result = result - other
    return (names.pop() if names else ""), result


def _solution(chain: Chain) -> tuple[str, Any] | None:
    """Return the variable of a chain of relations and its real solutions."""
    import sympy

    if chain.relations == ("in",):
        inner = _set_of(chain.terms[1])
        return (chain.terms[0].text.strip(), inner[1]) if inner and isinstance(chain.terms[0], Scalar) else None
    solutions = sympy.S.Reals
    names: set[Any] = set()
    for terms, operator in zip(pairwise(chain.terms), chain.relations, strict=True):
        left_side, right_side = (expression_of(t.text) if isinstance(t, Scalar) else None for t in terms)
        if left_side is None or right_side is None:
            return None
        names |= left_side.free_symbols | right_side.free_symbols
        if len(names) != 1:
            return None
        variable = dict.fromkeys(names, sympy.Symbol("variable", real=True))
        relation = sympy.Rel(
            left_side.xreplace(variable), right_side.xreplace(variable), "==" if operator == "=" else operator
        )
        solutions = solutions.intersect(relation.as_set())
    return str(names.pop()), solutions
