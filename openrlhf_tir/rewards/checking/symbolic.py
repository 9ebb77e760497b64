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
from itertools import combinations
from typing import Any

from .answer_form import Chain, Form, Listed, Literal, Matrix, Scalar, Several, Union, Words, canonical_words, read
from .numerals import number
from .spelling import compact, spelt

DIGITS = 60
"""Digits to which constants are compared first. Equal ones are compared to four times as many."""
POINTS = ("7/5", "-13/11", "31/7", "-37/100", "29/10", "5/13", "-41/9")
"""Values that are substituted for a variable. Two expressions that agree wherever both are real are equal."""
MIN_POINTS = 3
"""Number of points at which both must be real, and agree."""
MAX_SCALAR_CHARS = 600
"""Characters of the longest expression that is read."""
MAX_POWER = 100_000
"""A power with a larger exponent, or a factorial of a larger number, is not computed: only the same text is equal."""
MAX_RATIO = 8
"""Terms of the longest ratio that is compared."""

_SPACED_DIGITS = re.compile(r"(?<!\^)\d\.?\s+\.?\d|\d\s+\.|\d_")
"""Numerals side by side, which may be a product or a mixed number, and a numeral with an impossible base."""
_SECONDS = re.compile(r"\s*\d{1,2}\s*:\s*[0-5]\d\s*:\s*[0-5]\d\b.*")
"""A time of day with seconds."""
_CLOCK = re.compile(r"(?:^|:)\s*0\d")
"""A term with a leading zero, 1:30:00, which a clock shows and no ratio has."""
_CHOICE_OF = re.compile(r"\(?(?P<letter>[A-J])(?:\)|[.:])\s+(?P<content>\S.*)", re.DOTALL)
_SLASHED_PRODUCT = re.compile(r"/\s*\d+(?:\.\d+)?\s*(?:[a-zA-Z({]|\\(?!cdot|times|%|le|ge|pm|mp))")
_WORD = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z]{4,}")
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
        return _equal_choices(answer, gold) or _equal_forms(_form(answer), _form(gold))
    except Exception:  # sympy raises all kinds of exceptions for meaningless expressions; bad answers are data
        return False


def _equal_choices(answer: str, gold: str) -> bool:
    """Return True for a choice that one of two answers gives with its content, as in (C) 17, and the other without."""
    labelled = [_CHOICE_OF.fullmatch(text) for text in (answer, gold)]
    if (labelled[0] is None) == (labelled[1] is None):
        return False
    [choice] = [match for match in labelled if match is not None]
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
            return canonical_words(x) == canonical_words(y)
        case (Scalar(), Scalar()):
            return _equal_scalars(a, b)
        case (Matrix(x), Matrix(y)):
            return len(x) == len(y) and all(_in_order(r, s) for r, s in zip(x, y, strict=True))
        case (Several(x), Several(y)) if not (_is_relational(a) or _is_relational(b)):
            # "x = 1, y = 2" has an order, "x = 1, x = 2" are two solutions
            names = sorted(len(_names(side)) for side in (a, b) if isinstance(side, Several))
            if names[0] == 0 and names[1] > 1:
                return _in_order(x, y)
            return _in_any_order(x, y)
    if isinstance(a, Chain) and not isinstance(b, Chain) and (unnamed := _value_of(a)) is not None:
        return _equal_forms(unnamed, b)
    if isinstance(b, Chain) and not isinstance(a, Chain) and (unnamed := _value_of(b)) is not None:
        return _equal_forms(a, unnamed)
    if isinstance(a, Listed) and isinstance(b, Listed) and (a.opening, a.closing) == (b.opening, b.closing):
        if _is_set(a):
            return _in_any_order(_distinct(a.items), _distinct(b.items))
        return _in_order(a.items, b.items)
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
            return _in_any_order(_distinct(listed.items), _distinct(_values(other)))
        if isinstance(other, Scalar) and len(listed.items) == 1 and other.text != r"\emptyset":
            return _equal_forms(listed.items[0], other)
        return None
    if listed.opening + listed.closing == "[]" and isinstance(other, Matrix):
        # as Python writes a matrix
        rows = [row.items for row in listed.items if isinstance(row, Listed) and row.opening + row.closing == "[]"]
        same_rows = len(rows) == len(listed.items) == len(other.rows)
        return same_rows and all(_in_order(row, cells) for row, cells in zip(rows, other.rows, strict=True))
    if listed.opening + listed.closing != "()":
        return None
    if isinstance(other, Several) and other.joint == "and" and len(_names(other)) == len(other.items):
        return _in_order(listed.items, _values(other))
    if isinstance(other, Several) and other.joint == ",":
        return _in_order(listed.items, other.items)
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
    if isinstance(form, Chain) and form.relations == ("=",) and _is_name(form.terms[0]):
        right = _expanded(form.terms[1])
        if isinstance(right, Several):
            return Several(tuple(Chain((form.terms[0], item), ("=",)) for item in right.items), ",")
    return form


def _value_of(chain: Chain) -> Form | None:
    r"""Return the value that is given to a name (x = 5, f(x) = 2x, x \\in (0, 1)); None for any other relation."""
    if set(chain.relations) == {"="} and all(_is_constant(term) for term in chain.terms):
        first, *others = chain.terms  # 5/2 = 2.5
        return first if all(_equal_forms(first, term) for term in others) else None
    if not _is_name(chain.terms[0]):
        return None
    if chain.relations == ("in",):
        return chain.terms[1]
    return chain.terms[-1] if set(chain.relations) == {"="} else None


def _is_constant(form: Form) -> bool:
    return isinstance(form, Scalar) and (value := _expression(form.text)) is not None and value.is_number


def _values(form: Several) -> tuple[Form, ...]:
    return tuple(value if isinstance(i, Chain) and (value := _value_of(i)) is not None else i for i in form.items)


def _names(form: Several) -> set[str]:
    """Return the names that the items give values to."""
    return {str(i.terms[0]) for i in form.items if isinstance(i, Chain) and _is_name(i.terms[0])}


def _is_name(form: Form) -> bool:
    r"""Return True for x, x_1, \theta, f(x), AB: names to which an answer gives a value."""
    if isinstance(form, Listed) and not _is_set(form):
        return all(_is_name(item) for item in form.items)
    name = form.text if isinstance(form, Scalar | Words) else ""
    name = re.sub(r"^(?:\\(?:angle|triangle|measuredangle|overline)|m\s*\\angle)\s*(?=[A-Z{])", "", name.strip())
    if name.startswith("{") and name.endswith("}"):
        name = name.strip("{}")
    pattern = (
        r"(?:[a-zA-Z]|\\(?!pi\b|frac|sqrt)[a-zA-Z]+(?:\{[a-zA-Z]+\})?)(?:_(?:\w|\{[^{}]*\}))?'*(?:\s*\([a-zA-Z, ]+\))?"
    )
    return bool(re.fullmatch(pattern + "|[A-Z]{2,4}", name.strip()))


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


def _distinct(items: Sequence[Form]) -> tuple[Form, ...]:
    distinct_items: list[Form] = []
    for item in items:
        if not any(_equal_forms(item, other) for other in distinct_items):
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
    ratios = [side.text.split(":") for side in (a, b)]
    if any(len(terms) > 2 for terms in ratios):
        return _equal_ratios(*ratios)
    if _time_of_day(a.text) or _time_of_day(b.text):
        return False
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
        or _SPACED_DIGITS.search(text)
        or _SLASHED_PRODUCT.search(text)
        or _WORD.search(text)
        or _PRIMES.search(text)
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

    letters = re.sub(r"\\[a-zA-Z]+", "", text)
    both_cases = any(c.islower() and c.upper() in letters for c in letters)
    config = latex2sympy2.ConversionConfig(lowercase_symbols=not both_cases)
    library = latex2sympy2._Latex2Sympy(config=config)
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


def _signs(text: str) -> Counter[str]:
    """Return how often each letter and digit occurs outside of the names of commands."""
    return Counter(c for c in re.sub(r"\\[a-zA-Z]+", "", text) if c.isalnum())


def _evaluated(expression: Any) -> Any | None:
    """Return an expression evaluated, with exact decimals and plain symbols; None if it is undefined or too big."""
    import sympy
    from sympy.core.function import AppliedUndef

    if _is_too_big(expression):
        return None
    expression = expression.xreplace({f: sympy.Rational(str(f)) for f in expression.atoms(sympy.Float)})
    imaginary = {s: sympy.I for s in expression.free_symbols if s.name == "i"}
    expression = expression.xreplace(imaginary)
    expression = expression.replace(lambda e: isinstance(e, sympy.UnevaluatedExpr), lambda e: e.args[0]).doit()
    applied = {e: sympy.Symbol(re.sub(r"\s", "", str(e))) for e in expression.atoms(AppliedUndef)}
    expression = expression.xreplace(applied)
    if expression.has(sympy.nan, sympy.zoo):
        return None
    return expression.xreplace({s: sympy.Symbol(s.name) for s in expression.free_symbols})


def _is_too_big(expression: Any) -> bool:
    """Return True if evaluating an expression would take a number of millions of digits."""
    import sympy

    for power in expression.atoms(sympy.Pow):
        base, exponent = power.args
        if base.is_number and exponent.is_number and not base.is_Symbol:
            size = abs(exponent.evalf(10))
            if size.is_comparable and size > MAX_POWER and exponent.is_integer:
                return True
    return any(
        f.args[0].is_number and f.args[0].evalf(10).is_comparable and f.args[0].evalf(10) > MAX_POWER
        for f in expression.atoms(sympy.factorial)
    )


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
    if not symbols:
        return _same_constant(a, b)
    agreed = 0
    agreed_complex = 0
    for shift in range(len(POINTS)):
        point = {s: sympy.Rational(POINTS[(shift + 3 * i) % len(POINTS)]) + i for i, s in enumerate(symbols)}
        x, y = (_numeric(e.subs(point), DIGITS // 2) for e in (a, b))
        if x is None or y is None:
            continue
        is_real = x.is_real and y.is_real
        if not _close(x, y, DIGITS // 3):
            if is_real or a.has(sympy.I) or b.has(sympy.I):
                return False
            continue
        agreed += bool(is_real)
        agreed_complex += 1
    return agreed >= MIN_POINTS or (agreed_complex >= MIN_POINTS and (a.has(sympy.I) or b.has(sympy.I)))


def _same_constant(a: Any, b: Any) -> bool:
    if a.is_zero or b.is_zero:
        other = b if a.is_zero else a
        return bool(other.is_zero or (other.is_zero is None and other.equals(0)))
    for digits in (DIGITS, 4 * DIGITS):
        x = _numeric(a, digits)
        y = _numeric(b, digits)
        if x is None or y is None or not _close(x, y, digits - 12):
            return False
    return True


def _numeric(expression: Any, digits: int) -> Any | None:
    """Return the value of an expression to some digits; None if it has none or is infinite."""
    value = expression.evalf(digits)
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
            return "", sympy.Interval(first, last, opening == "(", closing == ")")
        case Literal(text) | Scalar(text) if text.strip() in _NUMBER_SETS:
            return "", getattr(sympy.S, _NUMBER_SETS[text.strip()])
        case Union(parts, operators):
            return _folded([_set_of(p) for p in parts], operators)
        case Several(items, word) if word in ("or", "and"):
            return _folded(
                [_set_of(i) for i in items], ["union" if word == "or" else "intersection"] * (len(items) - 1)
            )
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
