r"""Read one expression in LaTeX as an exact sympy expression, with bounds on what is computed.

Math-Verify's grammar (latex2sympy2_extended) reads the text. It understands the beginning of many texts, so a text that
it did not read to its end has no reading here. An expression that would take too long or too much memory to evaluate
has none either, see the bounds below. Only a deadline stops what they do not know.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache, lru_cache
from typing import Any

from .numerals import number

MAX_SCALAR_CHARS = 600
"""Characters of the longest expression that is read."""
MAX_BARS = 10
"""Bars of absolute values in an expression. To pair many, the grammar would take exponential time."""
MAX_POWER = 100_000
"""A power with a larger exponent or with more digits, or a factorial or binomial coefficient of a larger number, is not
computed: only the same text is equal."""
MAX_TERMS = 10_000
"""Terms of the longest sum or product that is computed, unless the terms are a polynomial's values."""
_SPACED_DIGITS = re.compile(r"(?<!\^)\d\.?\s+\.?\d|\d\s+\.|\d_")
"""Numerals side by side, which may be a product or a mixed number, and a numeral with an impossible base."""
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


@lru_cache(maxsize=512)
def expression_of(text: str) -> Any | None:
    """Return the sympy expression of a spelt text; None if it was not understood to its end."""
    import sympy

    if plain := number(text):
        return sympy.Rational(plain.value.numerator, plain.value.denominator)
    ratio = re.fullmatch(r"([^:]+):([^:]+)", text)
    if ratio:
        top = expression_of(ratio[1].strip())
        bottom = expression_of(ratio[2].strip())
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
