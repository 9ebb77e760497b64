r"""Decide by computer algebra whether two answers in LaTeX are equal. It can hang, use up memory and crash, so run it
under a deadline.

    answer -> spelling.spelt -> answer_form.read -> compared form by form (here)
              single expressions: expressions.expression_of -> values.same_value; sets: number_sets.equal_sets

Math-Verify (latex2sympy2_extended) reads expressions; the comparison is our own. Math-Verify's comparison ignores
differences below 1e-15 (1/2^98 = 1/2^99), rounds decimals to six places (0.333333 = 1/3) and compares the part that it
could read of a text that it did not understand (1, 3, 5, \ldots). Here a decimal is exact, a text that was not read to
its end equals only the same text, and an undecided comparison is not equal: a reward for a wrong answer does more harm
than a missing one.

Importing this module is cheap; sympy is imported by the first check.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations, pairwise, product
from typing import Any

from .answer_form import (
    INDIAN,
    Chain,
    Congruence,
    Form,
    Listed,
    Literal,
    Matrix,
    Scalar,
    Several,
    Words,
    canonical_words,
    read,
    with_unit_of,
)
from .expressions import expression_of
from .library_verdict import parse_boxed, verify
from .number_sets import equal_sets
from .numerals import number
from .spelling import compact, spelt, without_grouping
from .values import can_be_paired, constant_ratio, same_value

MAX_RATIO = 8
"""Terms of the longest ratio that is compared."""

_SECONDS = re.compile(r"\s*\d{1,2}\s*:\s*[0-5]\d\s*:\s*[0-5]\d\b.*")
"""A time of day with seconds."""
_CLOCK = re.compile(r"(?:^|:)\s*0\d")
"""A term with a leading zero, 1:30:00, which a clock shows and no ratio has."""
_CHOICE_OF = re.compile(r"\(?(?P<letter>[A-J](?=[).:])|[a-j](?=\)))[).:]\s+(?P<content>\S.*)", re.DOTALL)
_CHOICES = "abcdefghij"
_SHORT_NAME = re.compile(r"[A-Z](?=[a-z]?[aeiouy])[a-z]{2}")
"""A word with a capital, such as Sam or Red, which is no product with it."""
_OTHER_CHOICE = re.compile(r"(?:or|and)\b|[,;&/]|(?:[A-Ja-j]\b\W*(?:(?:or|and)\b\W*)?)+$|.*\([A-Ja-j]\)", re.DOTALL)
_ARTICLE = re.compile(r"\A(?:the|an?) (?=[a-z]{3})")
_COMMAS = re.compile(r"([a-zA-Z]\s*=\s*)?(\d+(?:,\d+)+)")


def warm() -> None:
    """Import the library and build its grammar tables, which takes about two seconds, so that no check has to wait for
    it."""
    equal("x+1", "1+x")
    verify(parse_boxed("x+1"), parse_boxed("1+x"))


def equal(answer: str, gold: str) -> bool:
    """Return True if both mean the same. Answers that cannot be processed are not equal."""
    try:
        answer = spelt(answer)
        gold = spelt(gold)
        if bool(_COMMAS.fullmatch(answer)) != bool(_COMMAS.fullmatch(gold)):
            readings = [(x, y) for x in _readings(answer) for y in _readings(gold)]
        else:
            readings = [(_readings(answer)[0], _readings(gold)[0])]
        return _equal_choices(answer, gold) or any(_equal_forms(x, y) for x, y in readings)
    except Exception:  # sympy raises all kinds of exceptions for meaningless expressions; bad answers are data
        return False


def _readings(text: str) -> list[Form]:
    """Return the form of a text, and the other one of digits with commas, which are a numeral or a list: 1,234."""
    match = _COMMAS.fullmatch(text)
    numeral = _form(without_grouping(text))
    if match is None:
        return [numeral]
    if number(match[2]):
        return [numeral] if ",0" in match[2] else [numeral, _form(text.replace(",", ", "))]
    return [numeral, *([_form(text.replace(",", ""))] if INDIAN.fullmatch(match[2]) else [])]


def _equal_choices(answer: str, gold: str) -> bool:
    """Return True for a choice that one of two answers gives with its content, as in (C) 17, and the other without."""
    labelled = [_CHOICE_OF.fullmatch(text) for text in (answer, gold)]
    if (labelled[0] is None) == (labelled[1] is None):
        return False
    [choice] = [match for match in labelled if match is not None]
    if _OTHER_CHOICE.match(choice["content"]):
        return False
    other = _form(answer if labelled[0] is None else gold)
    return any(_equal_forms(_form(part), other) for part in (choice["letter"], choice["content"]))


@lru_cache(maxsize=512)
def _form(text: str) -> Form:
    return read(text)


# --- forms -----------------------------------------------------------------------------------------------------------


def _equal_forms(a: Form, b: Form) -> bool:
    if a == b:
        return True
    a = _expanded(a)
    b = _expanded(b)
    match a, b:
        case (Literal(x), Literal(y)):
            return compact(x) == compact(y)
        case (Words(x), Words(y)):
            return _ARTICLE.sub("", canonical_words(x)) == _ARTICLE.sub("", canonical_words(y))
        case (Words(x), Scalar(y)) | (Scalar(y), Words(x)):
            same_case = len(x) > 1 or x == y or x.casefold() in _CHOICES
            return same_case and canonical_words(x) == canonical_words(y)
        case (Scalar(), Scalar()):
            return _equal_scalars(a, b)
        case (Congruence(), Congruence()):
            return a.modulus == b.modulus and _equal_forms(a.left, b.left) and _congruent(a.right, b.right, a.modulus)
        case (Matrix(x), Matrix(y)):
            return len(x) == len(y) and all(_in_order(r, s) for r, s in zip(x, y, strict=True))
        case (Several(x), Several(y)) if not (_is_relational(a) or _is_relational(b)):
            if {a.joint, b.joint} == {"and", "or"} and not all(map(_is_value, x)):
                return False
            # "x = 1, y = 2" has an order, "x = 1, x = 2" are two solutions
            names = sorted(len(_names(side)) for side in (a, b) if isinstance(side, Several))
            if names[0] == 0 and names[1] > 1:
                return _in_order(_by_name(a), _by_name(b))
            return can_be_paired(x, y, _equal_forms)
    if isinstance(a, Several) and isinstance(b, Several) and _same_statements(a, b):
        return True
    if isinstance(a, Chain) != isinstance(b, Chain):
        unnamed = _unnamed(a), _unnamed(b)
        if unnamed != (a, b):
            return _equal_forms(*unnamed)
    if isinstance(a, Listed) and isinstance(b, Listed) and (a.opening, a.closing) == (b.opening, b.closing):
        if _is_set(a):
            return can_be_paired(_distinct(a.items), _distinct(b.items), _equal_items)
        return len(a.items) == len(b.items) and all(map(_equal_items, a.items, b.items))
    for listed, other in ((a, b), (b, a)):
        if isinstance(listed, Listed) and (verdict := _equal_listed(listed, other)) is not None:
            return verdict
    if isinstance(a, Chain) and isinstance(b, Chain) and _equal_chains(a, b):
        return True
    return equal_sets(a, b)


def _same_statements(a: Several, b: Several) -> bool:
    """Return True for the same relations, joined in the same way: 2 k pi, k in Z."""
    return (
        (_is_relational(a) or _is_relational(b))
        and a.joint == b.joint
        and can_be_paired(a.items, b.items, _equal_forms)
    )


def _equal_listed(listed: Listed, other: Form) -> bool | None:
    """Compare items between brackets with an answer of another form; None if that does not decide it."""
    if _is_set(listed):
        if isinstance(other, Several) and not _is_relational(other):
            letters = {_name_of(item).partition("_")[0] for item in other.items} - {""}
            same_name = len(letters) <= 1  # x = 7, y = 8 are no two values of x
            return same_name and can_be_paired(
                _distinct(listed.items), _distinct([*map(_unnamed, other.items)]), _equal_items
            )
        if isinstance(other, Scalar) and len(listed.items) == 1 and other.text != r"\emptyset":
            return _equal_items(listed.items[0], other)
        if isinstance(other, Listed) and len(listed.items) == 1 and isinstance(listed.items[0], Listed):
            return other.opening == "(" and _equal_items(listed.items[0], other)  # {(1, 2)}, one solution
        return None
    if listed.opening + listed.closing == "[]" and isinstance(other, Matrix):
        # as Python writes a matrix
        rows = [row.items for row in listed.items if isinstance(row, Listed) and row.opening + row.closing == "[]"]
        same_rows = len(rows) == len(listed.items) == len(other.rows)
        return same_rows and all(_in_order(row, cells) for row, cells in zip(rows, other.rows, strict=True))
    if listed.opening + listed.closing != "()":
        return None
    if isinstance(other, Several) and (
        other.joint == "," or (other.joint == "and" and len(_names(other)) == len(other.items))
    ):
        return _in_order(listed.items, _by_name(other))
    if isinstance(other, Matrix) and 1 in (len(other.rows), len(other.rows[0])):
        return _in_order(listed.items, [cell for row in other.rows for cell in row])
    return None


def _expanded(form: Form) -> Form:
    r"""Return both values of an expression with one \pm; the form itself otherwise."""
    if isinstance(form, Several) and not _is_relational(form):
        values = _signs_of(form.items)
        if any(len(signs) > 1 for signs in values) and not any(isinstance(item, Several) for item in form.items):
            return Several(tuple(value for signs in values for value in signs), form.joint)
    if isinstance(form, Listed) and form.opening + form.closing == "()":
        choices = _signs_of(form.items)
        if math.prod(map(len, choices)) == 2:  # (\pm 2, 3): two points
            points = [Listed(items, form.opening, form.closing) for items in product(*choices)]
            return Several(tuple(points), ",")
    if isinstance(form, Scalar) and form.text.count(r"\pm") + form.text.count(r"\mp") == 1:
        signs = [re.sub(r"\\[pm][mp](?![a-zA-Z])\s*", sign, form.text).strip() for sign in "+-"]
        items = tuple(Scalar(sign.removeprefix("+"), form.unit, form.percent) for sign in signs)
        return Several(items, ",")
    if isinstance(form, Chain) and form.relations in (("=",), ("!=",)) and _is_name(form.terms[0]):
        right = _expanded(form.terms[1])
        if isinstance(right, Several):
            joint = "," if form.relations == ("=",) else "and"
            return Several(tuple(Chain((form.terms[0], item), form.relations) for item in right.items), joint)
    return form


def _signs_of(items: Sequence[Form]) -> list[tuple[Form, ...]]:
    r"""Return both values of each item with one \pm, and the others alone."""
    return [item.items if isinstance(item, Several) else (item,) for item in map(_expanded, items)]


def _value_of(chain: Chain) -> Form | None:
    r"""Return the value that is given to a name (x = 5, f(x) = 2x, x \\in (0, 1)); None for any other relation."""
    if set(chain.relations) == {"="} and all(_is_constant(term) for term in chain.terms):
        first, *others = chain.terms  # 5/2 = 2.5
        if all(_equal_forms(first, term) for term in others):
            return first
    if not _is_name(chain.terms[0]):
        is_reversed = (
            chain.relations == ("=",) and _is_name(chain.terms[1]) and not _is_constant(chain.terms[1])
        )  # 5 = x
        return chain.terms[0] if is_reversed else None
    if chain.relations == ("in",):
        return chain.terms[1]
    constants = [term for term in chain.terms[1:] if _is_constant(term)]
    is_consistent = all(_equal_forms(constants[-1], term) for term in constants[:-1])  # x = 5 = 6 says nothing
    return chain.terms[-1] if set(chain.relations) == {"="} and is_consistent else None


def _unnamed(form: Form) -> Form:
    """Return the value that a chain gives to a name; any other form as it is."""
    value = _value_of(form) if isinstance(form, Chain) else None
    return form if value is None else value


def _is_value(form: Form) -> bool:
    """Return True for a solution, which "and" joins to others as well as "or"."""
    return isinstance(form, Chain | Listed | Matrix) or _is_constant(form)


def _is_constant(form: Form) -> bool:
    return isinstance(form, Scalar) and (value := expression_of(form.text)) is not None and value.is_number


def _by_name(form: Several) -> tuple[Form, ...]:
    """Return the values of items. If their names follow each other, as in y = 2, x = 1, in the names' order."""
    names = [_name_of(item) for item in form.items]
    values = tuple(map(_unnamed, form.items))
    if any(len(name) != 1 for name in names) or any(ord(y) - ord(x) != 1 for x, y in pairwise(sorted(names))):
        return values
    return tuple(value for _, value in sorted(zip(names, values, strict=True), key=lambda pair: pair[0]))


def _name_of(item: Form) -> str:
    return item.terms[0].text if isinstance(item, Chain) and isinstance(item.terms[0], Scalar) else ""


def _names(form: Several) -> set[str]:
    """Return the names that the items give values to."""
    return {str(i.terms[0]) for i in form.items if isinstance(i, Chain) and _is_name(i.terms[0])}


def _is_name(form: Form) -> bool:
    r"""Return True for what an answer gives a value to: x, x_1, \theta, f(x), f(3), P(X = 2), AB, \sin A, area."""
    if isinstance(form, Listed) and not _is_set(form):
        return all(_is_name(item) for item in form.items)
    name = form.text if isinstance(form, Scalar | Words) else ""
    name = re.sub(r"^(?:\\(?:angle|triangle|measuredangle|overline)|m\s*\\angle)\s*(?=[A-Z{])", "", name.strip())
    if name.startswith("{") and name.endswith("}"):
        name = name.strip("{}")
    if isinstance(form, Words) and re.fullmatch(r"[A-Za-z]{4,}(?: [a-z]+){0,3}", name):
        return True  # total cost = 18
    letters = r"(?:[a-zA-Z]|\\(?!pi\b|frac|sqrt)[a-zA-Z]+(?:\{[a-zA-Z]+\})?)(?:_(?:\w|\{[^{}]*\}))?'*"
    arguments = r"\s*\((?:[a-zA-Z, ]+|[+-]?\d+|[A-Z][^()]*)\)"
    function = r"\\(?:sin|cos|tan|arg)\s*(?:[a-zA-Z]|\\[a-z]+)"
    return bool(re.fullmatch(rf"{letters}(?:{arguments})?|[A-Z]{{2,4}}|{function}", name.strip()))


def _is_set(form: Listed) -> bool:
    return form.opening == r"\{" and form.closing == r"\}"


def _is_relational(form: Several) -> bool:
    return any(isinstance(i, Chain) and set(i.relations) != {"="} for i in form.items)


def _in_order(a: Sequence[Form], b: Sequence[Form]) -> bool:
    return len(a) == len(b) and all(_equal_forms(x, y) for x, y in zip(a, b, strict=True))


def _equal_items(a: Form, b: Form) -> bool:
    """Compare members of sets and tuples: {1} is no member of {1, 2}."""
    sets = [isinstance(form, Listed) and _is_set(form) for form in (a, b)]
    return sets[0] == sets[1] and _equal_forms(a, b)


def _congruent(a: Form, b: Form, modulus: str) -> bool:
    """Return True for residues, or lists of residues, that are equal modulo a number."""
    if isinstance(a, Several) and isinstance(b, Several):
        return can_be_paired(a.items, b.items, lambda x, y: _congruent(x, y, modulus))
    residues = [number(form.text) if isinstance(form, Scalar) else None for form in (a, b)]
    if residues[0] and residues[1] and modulus.isdecimal() and int(modulus):
        return (residues[0].value - residues[1].value) % int(modulus) == 0
    return _equal_forms(a, b)


def _distinct(items: Sequence[Form]) -> tuple[Form, ...]:
    distinct_items: list[Form] = []
    for item in items:
        if not any(_equal_items(item, other) for other in distinct_items):
            distinct_items.append(item)
    return tuple(distinct_items)


# --- single expressions ----------------------------------------------------------------------------------------------


def _equal_scalars(a: Scalar, b: Scalar) -> bool:
    a, b = with_unit_of(a, b), with_unit_of(b, a)
    if a.unit and b.unit and a.unit != b.unit:
        return False
    if (a.percent and b.unit) or (b.percent and a.unit):
        return False
    if compact(a.text) == compact(b.text) and a.percent == b.percent:
        return True
    if any(_SHORT_NAME.fullmatch(side.text) for side in (a, b)) and a.text.casefold() == b.text.casefold():
        return True
    ratios = [side.text.split(":") for side in (a, b)]
    if any(len(terms) > 2 for terms in ratios):
        return _equal_ratios(*ratios)
    if _time_of_day(a.text) or _time_of_day(b.text):
        times = [_minutes(side.text) for side in (a, b)]
        same_text = compact(a.text).lstrip("0") == compact(b.text).lstrip("0")
        return same_text or (times[0] is not None and times[0] == times[1])
    x = expression_of(a.text)
    y = expression_of(b.text)
    if x is None or y is None:
        return False
    if a.percent == b.percent:
        return same_value(x, y)
    # "What percentage?" is answered by 25 and by 25 %, "which part?" by 0.25 and by 25 %.
    share, other = (x, y) if a.percent else (y, x)
    return same_value(share, other) or same_value(share / 100, other)


def _equal_ratios(a: Sequence[str], b: Sequence[str]) -> bool:
    """Return True for two ratios of several terms, 1 : 2 : 3 and 2 : 4 : 6. Times with seconds are no ratios."""
    texts = [":".join(terms) for terms in (a, b)]
    if len(a) != len(b) or len(a) > MAX_RATIO:
        return False
    if all(map(_SECONDS.fullmatch, texts)) or any(map(_CLOCK.search, texts)):
        return False
    terms = [(expression_of(x), expression_of(y)) for x, y in zip(a, b, strict=True)]
    pairs = [(x, y) for x, y in terms if x is not None and y is not None]
    if len(pairs) < len(terms):
        return False
    if any(bool(x.is_zero) != bool(y.is_zero) for x, y in pairs):
        return False  # 0 : 0 : 0 has the products of every ratio
    return all(same_value(x * other_y, other_x * y) for (x, y), (other_x, other_y) in combinations(pairs, 2))


def _time_of_day(text: str) -> bool:
    return bool(re.search(r"\d\s*:\s*[0-5]\d(?!\d)", text))


def _minutes(text: str) -> int | None:
    """Return the minutes since midnight; None for a time whose half of the day is open, as in 7:30."""
    clock = re.fullmatch(r"(\d{1,2})\s*:\s*(\d\d)(?: ([ap])m)?", text)
    if clock is None or (clock[3] is None and clock[1][0] != "0" and int(clock[1]) <= 12):
        return None
    hour = int(clock[1]) if clock[3] is None else int(clock[1]) % 12 + 12 * (clock[3] == "p")
    return 60 * hour + int(clock[2])


# --- relations -------------------------------------------------------------------------------------------------------

_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}


def _equal_chains(a: Chain, b: Chain) -> bool:
    """Return True if both state the same about the same expressions, up to a factor and the order of the sides."""
    if len(a.relations) != 1 or len(b.relations) != 1:
        same_way = a.relations == b.relations and _in_order(a.terms, b.terms)
        flipped = tuple(_FLIPPED.get(r, "?") for r in reversed(b.relations))
        return same_way or (a.relations == flipped and _in_order(a.terms, tuple(reversed(b.terms))))
    (r,) = a.relations
    (s,) = b.relations
    if "in" in (r, s):
        return r == s and _in_order(a.terms, b.terms)
    x = _difference(a)
    y = _difference(b)
    if x is None or y is None or y.is_zero:
        return False
    import sympy

    factor = constant_ratio(x, y)
    if factor is None:
        return False
    if r in ("=", "!="):
        return r == s
    positive = sympy.Gt(factor, 0) == sympy.true
    return (s if positive else _FLIPPED[s]) == r


def _difference(chain: Chain) -> Any | None:
    left_side, right_side = (
        expression_of(t.text) if isinstance(t, Scalar) and not t.percent else None for t in chain.terms
    )
    return None if left_side is None or right_side is None else left_side - right_side
