r"""Decide by computer algebra whether two answers in LaTeX are equal. It can hang, use up memory and crash, so run it
under a deadline.

    answer -> spelling.spelt -> answer_form.read -> compared form by form; Math-Verify reads the single expressions

Math-Verify (latex2sympy2_extended) reads expressions; the comparison is our own. Math-Verify's comparison ignores
differences below 1e-15 (1/2^98 = 1/2^99), rounds decimals to six places (0.333333 = 1/3) and compares the part that it
could read of a text that it did not understand (1, 3, 5, \ldots). Here a decimal is exact, a text that was not read to
its end equals only the same text, and an undecided comparison is not equal: a reward for a wrong answer does more harm
than a missing one.

`parse_boxed`, `parse_bare` and `verify` are the library's own verdicts, for methods whose official code uses it. Its
deadlines use SIGALRM, which only works in a main thread, so they are off; the caller has a deadline (see pool.py).
Importing this module is cheap; sympy is imported by the first check.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import combinations, pairwise
from typing import Any

from .answer_form import (
    Chain,
    Congruence,
    Form,
    Listed,
    Literal,
    Matrix,
    Scalar,
    Several,
    Union,
    Words,
    canonical_words,
    read,
)
from .numerals import number
from .spelling import compact, spelt, without_grouping

DIGITS = 60
"""Digits to which constants are compared first. Equal ones are compared to many more, see `_reach`."""
POINTS = ("7/5", "-13/11", "31/7", "-37/100", "29/10", "5/13", "-41/9")
"""Values that are substituted for a variable. Two expressions that agree wherever both are real are equal."""
MIN_POINTS = 3
"""Number of points at which both must be real, and agree."""
MAX_SCALAR_CHARS = 600
"""Characters of the longest expression that is read."""
MAX_BARS = 10
"""Bars of absolute values in an expression. To pair many, the grammar would take exponential time."""
MAX_POWER = 100_000
"""A power with a larger exponent or with more digits, or a factorial or binomial coefficient of a larger number, is not
computed: only the same text is equal."""
MAX_TERMS = 10_000
"""Terms of the longest sum or product that is computed, unless the terms are a polynomial's values."""
MAX_REACH = 2_000
"""Digits of the numbers and powers in two expressions that are compared by their values. With more, they could differ
behind all digits that are computed, and count as different."""
MAX_RATIO = 8
"""Terms of the longest ratio that is compared."""

_SPACED_DIGITS = re.compile(r"(?<!\^)\d\.?\s+\.?\d|\d\s+\.|\d_")
"""Numerals side by side, which may be a product or a mixed number, and a numeral with an impossible base."""
_SECONDS = re.compile(r"\s*\d{1,2}\s*:\s*[0-5]\d\s*:\s*[0-5]\d\b.*")
"""A time of day with seconds."""
_CLOCK = re.compile(r"(?:^|:)\s*0\d")
"""A term with a leading zero, 1:30:00, which a clock shows and no ratio has."""
_CHOICE_OF = re.compile(r"\(?(?P<letter>[A-J](?=[).:])|[a-j](?=\)))[).:]\s+(?P<content>\S.*)", re.DOTALL)
_CHOICES = "abcdefghij"
_SHORT_NAME = re.compile(r"[A-Z](?=[a-z]?[aeiouy])[a-z]{2}")
"""A word with a capital, such as Sam or Red, which is no product with it."""
_OTHER_CHOICE = re.compile(r"(?:or|and)\b|[,;&/]|(?:[A-Ja-j]\b\W*(?:(?:or|and)\b\W*)?)+$|.*\([A-Ja-j]\)", re.DOTALL)
_COMMAS = re.compile(r"([a-zA-Z]\s*=\s*)?(\d+(?:,\d+)+)")
_INDIAN = re.compile(r"\d{1,2}(?:,\d{2})+,\d{3}")
"""A numeral with the separators of lakh and crore."""
_DATE = re.compile(r"\d{4}\s*([-/])\s*\d{1,2}\s*\1\s*\d{1,2}|\d{1,2}\s*/\s*\d{1,2}\s*/\s*\d{4}")
_SLASHED_PRODUCT = re.compile(r"/\s*\d+(?:\.\d+)?\s*(?:[a-zA-Z({]|\\(?!cdot|times|%|le|ge|pm|mp))")
_WORD = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z]{4,}")
_UNREAD = re.compile(
    r"""['"$]|!\s*!|\\(?:angle|measuredangle|triangle)(?![a-zA-Z])|\d[eE]\d|\b0[xXbBoO]\d|\\gamma\s*\(|\\Gamma\W*\d{6}"""
)
"""Marks that the grammar ignores, double factorials, names of points that it multiplies, 1e9x, and a gamma function of
a large number, which it computes."""
_PRIMES = re.compile(r"[a-zA-Z)}]'+|\^\s*\{?\s*(?:T\b|\*|\\(?:top|intercal|dagger|prime|ast)(?![a-zA-Z]))")
"""Derivatives, transposes and similar marks, which the grammar ignores."""
_DEGREES = re.compile(r"(\d+(?:\.\d+)?|\\frac\{\d+\}\{\d+\})\s*\^\\circ")
_NUMBER_SETS = {
    r"\mathbb{R}": "Reals", r"\mathbb{Z}": "Integers", r"\mathbb{N}": "Naturals",
    r"\mathbb{Q}": "Rationals",
                r"\mathbb{C}": "Complexes", r"\emptyset": "EmptySet"}  # fmt: skip


@cache
def _library():
    import math_verify

    # It warns once per process that its deadlines are off, which is intended here.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    return math_verify


def warm() -> None:
    """Import the library and build its grammar tables, which takes about two seconds, so that no check has to wait for
    it."""
    equal("x+1", "1+x")
    verify(parse_boxed("x+1"), parse_boxed("1+x"))


def parse_boxed(latex: str) -> list[Any]:
    """Return math-verify's reading: [expression, text], [text] if it cannot be interpreted, or []."""
    return [*_read(latex)]


@lru_cache(maxsize=256)
def _read(latex: str) -> list[Any]:
    """Return math-verify's reading. It is cached: a worker reads the same gold answer for each response of a group."""
    reading: list[Any] = _library().parse(f"\\boxed{{{latex}}}", parsing_timeout=None)
    return reading


def parse_bare(text: str) -> list[Any]:
    """Return math-verify's reading without the box, which finds less, for methods whose verdicts depend on that."""
    return _library().parse(text, parsing_timeout=None)


def verify(gold: list[Any], answer: list[Any]) -> bool:
    """Return math-verify's verdict on two readings."""
    return _library().verify(gold, answer, timeout_seconds=None)


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
    return [numeral, *([_form(text.replace(",", ""))] if _INDIAN.fullmatch(match[2]) else [])]


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
            return canonical_words(x) == canonical_words(y)
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
            return _in_any_order(x, y)
    if isinstance(a, Chain) and not isinstance(b, Chain) and (unnamed := _value_of(a)) is not None:
        return _equal_forms(unnamed, b)
    if isinstance(b, Chain) and not isinstance(a, Chain) and (unnamed := _value_of(b)) is not None:
        return _equal_forms(a, unnamed)
    if isinstance(a, Listed) and isinstance(b, Listed) and (a.opening, a.closing) == (b.opening, b.closing):
        if _is_set(a):
            return _can_be_paired(_distinct(a.items), _distinct(b.items), _equal_items)
        return len(a.items) == len(b.items) and all(map(_equal_items, a.items, b.items))
    if isinstance(a, Listed) and (verdict := _equal_listed(a, b)) is not None:
        return verdict
    if isinstance(b, Listed) and (verdict := _equal_listed(b, a)) is not None:
        return verdict
    if isinstance(a, Chain) and isinstance(b, Chain) and _equal_chains(a, b):
        return True
    return _equal_sets(a, b)


def _equal_listed(listed: Listed, other: Form) -> bool | None:
    """Compare items between brackets with an answer of another form; None if that does not decide it."""
    if _is_set(listed):
        if isinstance(other, Several) and not _is_relational(other):
            letters = {_name_of(item).partition("_")[0] for item in other.items} - {""}
            same_name = len(letters) <= 1  # x = 7, y = 8 are no two values of x
            return same_name and _can_be_paired(_distinct(listed.items), _distinct(_values(other)), _equal_items)
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
    if isinstance(other, Several) and other.joint == "and" and len(_names(other)) == len(other.items):
        return _in_order(listed.items, _by_name(other))
    if isinstance(other, Several) and other.joint == ",":
        return _in_order(listed.items, _by_name(other))
    if isinstance(other, Matrix) and len(other.rows[0]) == 1:
        return _in_order(listed.items, tuple(row[0] for row in other.rows))
    if isinstance(other, Matrix) and len(other.rows) == 1:
        return _in_order(listed.items, other.rows[0])
    return None


def _expanded(form: Form) -> Form:
    r"""Return both values of an expression with one \pm; the form itself otherwise."""
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


def _is_value(form: Form) -> bool:
    """Return True for a solution, which "and" joins to others as well as "or"."""
    return isinstance(form, Chain | Listed | Matrix) or _is_constant(form)


def _is_constant(form: Form) -> bool:
    return isinstance(form, Scalar) and (value := _expression(form.text)) is not None and value.is_number


def _values(form: Several) -> tuple[Form, ...]:
    return tuple(value if isinstance(i, Chain) and (value := _value_of(i)) is not None else i for i in form.items)


def _by_name(form: Several) -> tuple[Form, ...]:
    """Return the values of items. If their names follow each other, as in y = 2, x = 1, in the names' order."""
    names = [_name_of(item) for item in form.items]
    values = _values(form)
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


def _in_any_order(a: Sequence[Form], b: Sequence[Form]) -> bool:
    return _can_be_paired(a, b, _equal_forms)


def _can_be_paired(a: Sequence[Any], b: Sequence[Any], same: Callable[[Any, Any], bool]) -> bool:
    """Return True if the items can be paired. Equality is transitive, so the first match is as good as any other."""
    unmatched = [*b]
    for x in a:
        at = next((i for i, y in enumerate(unmatched) if same(x, y)), None)
        if at is None:
            return False
        del unmatched[at]
    return not unmatched


def _equal_items(a: Form, b: Form) -> bool:
    """Compare members of sets and tuples: {1} is no member of {1, 2}."""
    sets = [isinstance(form, Listed) and _is_set(form) for form in (a, b)]
    return sets[0] == sets[1] and _equal_forms(a, b)


def _congruent(a: Form, b: Form, modulus: str) -> bool:
    """Return True for residues, or lists of residues, that are equal modulo a number."""
    if isinstance(a, Several) and isinstance(b, Several):
        return _can_be_paired(a.items, b.items, lambda x, y: _congruent(x, y, modulus))
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
    x = _expression(a.text)
    y = _expression(b.text)
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
    terms = [(_expression(x), _expression(y)) for x, y in zip(a, b, strict=True)]
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


@lru_cache(maxsize=512)
def _expression(text: str) -> Any | None:
    """Return the sympy expression of a spelt text; None if it was not understood to its end."""
    import sympy

    if plain := number(text):
        return sympy.Rational(plain.value.numerator, plain.value.denominator)
    ratio = re.fullmatch(r"([^:]+):([^:]+)", text)
    if ratio:
        top = _expression(ratio[1].strip())
        bottom = _expression(ratio[2].strip())
        return None if top is None or bottom is None or bottom.is_zero else top / bottom
    if (
        not text
        or len(text) > MAX_SCALAR_CHARS
        or text.count("|") > MAX_BARS
        or _SPACED_DIGITS.search(text)
        or _SLASHED_PRODUCT.search(text)
        or _WORD.search(text.replace("{vmatrix}", ""))
        or _PRIMES.search(text)
        or _UNREAD.search(text)
        or _DATE.fullmatch(text)
    ):
        return None
    text = _DEGREES.sub(r"(\\frac{\1 \\cdot \\pi}{180})", text)
    expression = _parsed(text)
    return None if expression is None else _evaluated(expression)


def _parsed(text: str) -> Any | None:
    """Return what Math-Verify's grammar reads in a text; None if that is not a single expression, or not the whole
    text."""
    from latex2sympy2_extended import latex2sympy2
    from sympy import Expr

    config = latex2sympy2.ConversionConfig(lowercase_symbols=False)
    library = _reader()(config=config, convert_degrees=True)
    original_create_parser = library.create_parser
    parsers: list[Any] = []

    def create_parser(latex: str) -> Any:
        parsers.append(original_create_parser(latex))
        return parsers[-1]

    library.create_parser = create_parser
    normal = latex2sympy2.normalize_latex(text, latex2sympy2.NormalizationConfig())
    if _signs(text) - _signs(normal):
        return None  # the normal form leaves something out, such as the T of a transposed matrix
    try:
        expression = library.parse(normal)
    except Exception:  # the grammar raises plain exceptions for unknown constructs
        return None
    read_to_end = parsers and parsers[0].getCurrentToken().type == -1
    return expression if read_to_end and isinstance(expression, Expr) else None


@cache
def _reader() -> Any:
    """Return the library's reader with products, roots and binomial coefficients as mathematicians read them."""
    import sympy
    from latex2sympy2_extended.latex2sympy2 import _Latex2Sympy

    class Reader(_Latex2Sympy):
        def convert_postfix_list(self, arr: Any, i: int = 0) -> Any:
            """Read 4(3) as a product, which is a mixed number for the library."""
            if i + 1 == len(arr):
                return super().convert_postfix_list(arr, i)
            left, right = (factor.getText() for factor in arr[i : i + 2])
            if re.match(r"\{\d", right) or (left.isdecimal() and re.match(r"\\frac\{\d+\}\{\d+\}", right)):
                raise ValueError("digits side by side, or a mixed number within an expression")
            factor = self.convert_postfix(arr[i])
            if not isinstance(factor, sympy.Expr):
                return super().convert_postfix_list(arr, i)
            return self.mul_flat(factor, self.convert_postfix_list(arr, i + 1))

        def convert_func(self, func: Any) -> Any:
            """Read an odd root of a negative number as the real one."""
            degree = self.convert_expr(func.root) if func.FUNC_SQRT() and func.root else None
            if degree is None or not degree.is_odd:
                return super().convert_func(func)
            base = self.convert_expr(func.base)
            if base.is_nonnegative:
                return sympy.Pow(base, 1 / degree, evaluate=False)
            return sympy.sign(base) * sympy.Pow(abs(base), 1 / degree, evaluate=False)

        def convert_binom(self, binom: Any) -> Any:
            return sympy.binomial(self.convert_expr(binom.upper), self.convert_expr(binom.lower), evaluate=False)

    return Reader


def _signs(text: str) -> Counter[str]:
    """Return how often each letter and digit occurs outside of the names of commands."""
    return Counter(c for c in re.sub(r"\\[a-zA-Z]+", "", text) if c.isalnum())


def _evaluated(expression: Any) -> Any | None:
    """Return an expression evaluated, with exact decimals and plain symbols; None if it is undefined or too big."""
    import sympy
    from sympy.core.function import AppliedUndef

    if _is_too_big(expression):
        return None
    if any(not d.expr.free_symbols & set(d.variables) for d in expression.atoms(sympy.Derivative)):
        return None  # dy/dx, which is not 0
    expression = expression.xreplace({f: sympy.Rational(str(f)) for f in expression.atoms(sympy.Float)})
    imaginary = {s: sympy.I for s in expression.free_symbols if s.name == "i"}
    expression = expression.xreplace(imaginary)
    expression = expression.replace(lambda e: isinstance(e, sympy.UnevaluatedExpr), lambda e: e.args[0]).doit()
    applied = {e: sympy.Symbol(re.sub(r"\s", "", str(e))) for e in expression.atoms(AppliedUndef)}
    expression = expression.xreplace(applied)
    if expression.has(sympy.nan, sympy.zoo):
        return None
    names = {s.name for s in expression.free_symbols}
    constants = {name for name in names if re.fullmatch(r"C(?:_\W*\d+\W*)?", name)}  # of integration, in either case
    constant = {name: name.lower() for name in constants if name.lower() not in names}
    return expression.xreplace({s: sympy.Symbol(constant.get(s.name, s.name)) for s in expression.free_symbols})


def _is_too_big(expression: Any) -> bool:
    """Return True if evaluating an expression would take a number of millions of digits."""
    import sympy

    for part in sympy.postorder_traversal(expression):  # exponents before their powers, so that each is small
        if isinstance(part, sympy.binomial):
            top, bottom = part.args
            sizes = [size.evalf(10) for size in (bottom, top - bottom) if size.is_number]
            if sizes and min(sizes) > (MAX_TERMS if top.is_number else 100):
                return True
        if not part.is_number:
            continue
        if isinstance(part, sympy.Pow) and part.exp.is_integer:
            size = abs(part.exp.evalf(10))
            if size > MAX_POWER or size * sympy.log(abs(part.base) + 2, 10).evalf(10) > MAX_POWER:
                return True
        if isinstance(part, sympy.factorial | sympy.gamma) and part.args[0].evalf(10) > MAX_POWER:
            return True
    for part in expression.atoms(sympy.Sum, sympy.Product):
        for index, first, last in part.limits:
            has_closed_form = isinstance(part, sympy.Sum) and part.function.is_polynomial(index)
            terms = last - first
            if not has_closed_form and terms.is_number and terms.is_finite and terms > MAX_TERMS:
                return True
    return False


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


# --- relations and sets ----------------------------------------------------------------------------------------------

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

    factor = _constant_ratio(x, y)
    if factor is None:
        return False
    if r in ("=", "!="):
        return r == s
    positive = sympy.Gt(factor, 0) == sympy.true
    return (s if positive else _FLIPPED[s]) == r


def _difference(chain: Chain) -> Any | None:
    left_side, right_side = (
        _expression(t.text) if isinstance(t, Scalar) and not t.percent else None for t in chain.terms
    )
    return None if left_side is None or right_side is None else left_side - right_side


def _constant_ratio(x: Any, y: Any) -> Any | None:
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


def _equal_sets(a: Form, b: Form) -> bool:
    """Return True if both describe the same set of real numbers: intervals, unions, inequalities of one variable."""
    x = _set_of(a)
    y = _set_of(b)
    if x is None or y is None:
        return False
    (name, first) = x
    (other, second) = y
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

    return _can_be_paired(pieces(a), pieces(b), same)


def _set_of(form: Form) -> tuple[str, Any] | None:
    """Return a variable, "" if none is named, and the set of real numbers that it may be; None if the form is no
    set."""
    import sympy

    match form:
        case Listed(items, opening, closing) if opening == r"\{" and closing == r"\}":
            values = [_expression(i.text) if isinstance(i, Scalar) else None for i in items]
            return None if None in values else ("", sympy.FiniteSet(*values))
        case Listed((Scalar(start), Scalar(end)), opening, closing) if r"\{" not in (opening, closing):
            first = _expression(start)
            last = _expression(end)
            if first is None or last is None or not (first.is_extended_real and last.is_extended_real):
                return None
            if not (first < last or (first == last and opening + closing == "[]")):
                return None  # a point such as (3, 1)
            return "", sympy.Interval(first, last, opening == "(", closing == ")")
        case Literal(text) | Scalar(text) if text.strip() in _NUMBER_SETS:
            return "", getattr(sympy.S, _NUMBER_SETS[text.strip()])
        case Union(parts, operators):
            return _folded([_set_of(p) for p in parts], operators)
        case Several(items, word) if word in ("or", "and"):
            return _folded(
                [_set_of(i) for i in items], ["union" if word == "or" else "intersection"] * (len(items) - 1)
            )
        case Several((Chain((name, *_), ("!=",)), *_) as items, ","):
            # x != 1, x != 2 and x != 1, 2
            excluded = [_set_of(i if isinstance(i, Chain) else Chain((name, i), ("!=",))) for i in items]
            return _folded(excluded, ["intersection"] * (len(items) - 1))
        case Several(items, ",") if all(isinstance(i, Listed) for i in items):
            return _folded([_set_of(i) for i in items], ["union"] * (len(items) - 1))
        case Chain():
            return _solution(form)
    return None


def _folded(sets: Sequence[tuple[str, Any] | None], operators: Sequence[str]) -> tuple[str, Any] | None:
    if any(s is None for s in sets):
        return None
    known_sets = [s for s in sets if s is not None]
    names = {name for name, _ in known_sets if name}
    if len(names) > 1:
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
    for single in _single_relations(chain):
        left_side, right_side = (_expression(t.text) if isinstance(t, Scalar) else None for t in single.terms)
        if left_side is None or right_side is None:
            return None
        names |= left_side.free_symbols | right_side.free_symbols
        if len(names) != 1:
            return None
        real = sympy.Symbol("variable", real=True)
        substitution = {name: real for name in names}
        makers = {"<": sympy.Lt, ">": sympy.Gt, "<=": sympy.Le, ">=": sympy.Ge, "!=": sympy.Ne, "=": sympy.Eq}
        relation = makers[single.relations[0]](left_side.xreplace(substitution), right_side.xreplace(substitution))
        if relation in (sympy.true, sympy.false):
            solved = sympy.S.Reals if relation == sympy.true else sympy.S.EmptySet
        else:
            solved = relation.as_set()
        solutions = solutions.intersect(solved)
    return (str(names.pop()), solutions) if names else None


def _single_relations(chain: Chain) -> Iterator[Chain]:
    for i, relation in enumerate(chain.relations):
        yield Chain((chain.terms[i], chain.terms[i + 1]), (relation,))
