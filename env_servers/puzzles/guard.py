"""Let scorers evaluate literals and formulas of a model's text, never code.

It is installed before scoring, in the process where the texts are evaluated.

    eval(answer) in a data set's module    numbers, texts, lists, tuples, sets, dictionaries, arithmetic on them
    sympy's parser                         arithmetic, symbols, and calls of FUNCTIONS

The sandbox keeps code from everything outside. This keeps it from the score itself, which the same process reports. A
name, an attribute or a call that is not listed is a ValueError, which a scorer takes as a malformed answer.
"""

from __future__ import annotations

import ast
import builtins
import sys
from typing import Any

MODULES = "reasoning_gym."
"""Prefix of the modules in which `eval` is replaced."""
ARITHMETIC = (ast.Expression, ast.Constant, ast.UnaryOp, ast.BinOp, ast.unaryop, ast.operator, ast.Load)
LITERAL = (*ARITHMETIC, ast.List, ast.Tuple, ast.Set, ast.Dict)
FORMULA = (*ARITHMETIC, ast.Name, ast.Call, ast.Tuple)
PARSER_FUNCTIONS = {"Integer", "Float", "Rational", "Symbol", "factorial", "factorial2"}
ELEMENTARY = {
    *(
        "sqrt", "cbrt", "root", "exp", "log", "ln", "Abs", "sign", "floor", "ceiling", "Pow", "Mul", "Add", "Mod",
        "gcd", "lcm", "binomial", "gamma", "erf",
    ),
    *("sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "acot", "asec", "acsc", "atan2"),
    *("sinh", "cosh", "tanh", "coth", "sech", "csch", "asinh", "acosh", "atanh", "acoth"),
}  # fmt: skip
FUNCTIONS = PARSER_FUNCTIONS | ELEMENTARY
CONSTANTS = {"pi", "E", "I", "oo"}


def literal(text: str, *_: Any) -> Any:
    """Return the value of a literal; it stands in for `eval`.

    Namespaces are ignored: a literal has no names.

    Raises:
        ValueError: The text is not a literal.
        SyntaxError: The text cannot be parsed.
    """
    _allow(ast.parse(text.strip() if isinstance(text, str) else "", mode="eval"), LITERAL, set())
    return builtins.eval(text.strip(), {"__builtins__": {}})


def formula(code: object, symbols: dict[str, Any]) -> None:
    """Check that sympy's parser may evaluate a text.

    Args:
        code: The text.
        symbols: The scorer's own names, for symbols.

    Raises:
        ValueError: The text is not a formula.
        SyntaxError: The text cannot be parsed.
    """
    if not isinstance(code, str):
        raise ValueError(f"only text is evaluated here, not {type(code).__name__}")
    _allow(ast.parse(code.strip(), mode="eval"), FORMULA, FUNCTIONS | CONSTANTS | set(symbols))


def _allow(tree: ast.AST, nodes: tuple[type[ast.AST], ...], names: set[str]) -> None:
    """Raise ValueError if a tree holds other nodes, names or calls than those allowed."""
    for node in ast.walk(tree):
        if not isinstance(node, nodes):
            raise ValueError(f"{type(node).__name__} is not a part of an answer")
        if isinstance(node, ast.Name) and node.id not in names:
            raise ValueError(f"the name {node.id[:40]!r} is not a part of an answer")
        if isinstance(node, ast.Call) and (
            not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS or node.keywords
        ):
            raise ValueError(f"{ast.unparse(node)[:40]!r} is not a call of a function of arithmetic")


def install() -> None:
    """Replace `eval` in this process, permanently. reasoning-gym must be imported before."""
    import sympy.parsing.sympy_parser as parser

    evaluate = parser.eval_expr

    def guarded(code: Any, local_dict: dict[str, Any], global_dict: dict[str, Any]) -> Any:
        formula(code, {name: value for name, value in local_dict.items() if value is not None})
        return evaluate(code, local_dict, global_dict)

    parser.eval_expr = guarded
    for name, module in list(sys.modules.items()):
        if name.startswith(MODULES):
            vars(module)["eval"] = literal
