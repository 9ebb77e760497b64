"""The guard: what scorers may evaluate of a model's text. No code, by any of the ways that are known; the usual
notations of answers, all."""

from __future__ import annotations

import re

import pytest

from env_servers.puzzles.guard import formula, literal

HOSTILE = [
    "__import__('os').system('true')",
    "open('/etc/passwd').read()",
    "().__class__.__bases__[0].__subclasses__()",
    "eval('1')",
    "exec('x = 1')",
    "globals()",
    "getattr(1, 'real')",
    'print(\'{"score": 1.0, "error": null}\')',
    "(lambda: 1)()",
    "[x for x in (1, 2)]",
    "(x := 1)",
    "f'{1}'",
    "'%c' % 1 if 1 else 2",
    "[1, 2][0]",
    "{**{}}['a']",
    "breakpoint()",
    "__builtins__",
    "await 1",
    "yield",
    "import os",
    "1; 2",
    "*[1]",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_code_is_neither_a_literal_nor_a_formula(text):
    for refused in (literal, lambda t: formula(t, {})):
        with pytest.raises((ValueError, SyntaxError, TypeError)):
            refused(text)


@pytest.mark.parametrize(
    "text",
    [
        "Symbol('x').diff",
        "sin.__class__",
        "Integral(x, x)",
        "Derivative(x, x)",
        "Function('f')",
        "sympify('1')",
        "lambdify(x, x)",
        "Symbol('x', real=True)",
        "S('1')",
    ],
)
def test_a_formula_contains_only_arithmetic_of_sympy(text):
    """An unevaluated Integral would be right by definition: its derivative is the integrand."""
    named = "Attribute" if "." in text else repr(text)
    with pytest.raises(ValueError, match=re.escape(named)):
        formula(text, {"x": object()})


def test_numbers_texts_and_containers_of_them_are_literals():
    assert literal("[[1, 0], (2, -3.5)]") == [[1, 0], (2, -3.5)]
    assert literal(" {'a': {1, 2}} ") == {"a": {1, 2}}
    assert literal("(0x1f + 3) << 2 & ~1") == (0x1F + 3) << 2 & ~1


def test_the_parsers_result_for_an_answer_is_a_formula():
    formula("Integer (2 )*Symbol ('x' )**Integer (3 )-Float ('0.5' )*exp (-x )+C ", {"x": object(), "C": object()})
    formula("sqrt (Integer (4 ))*pi +Rational ('1','3')", {})


def test_only_text_is_evaluated():
    """With evaluate=False the parser would hand over compiled code."""
    with pytest.raises(ValueError, match=r"\bcode$"):
        formula(compile("1", "x", "eval"), {})
    for nothing in (None, "", 7):
        with pytest.raises((SyntaxError, ValueError)):
            literal(nothing)
