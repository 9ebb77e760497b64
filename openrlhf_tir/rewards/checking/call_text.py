"""Calls in text: what a model wrote -> [{name: arguments}, ...], in BFCL's Python notation or ToolRL's JSON lines. Nothing is evaluated.

Source: gorilla's ast_parse and ToolRL's BFCL handler (see specs/Eval.md).
"""

from __future__ import annotations

import ast
import json
import operator
from typing import Any

Calls = list[dict[str, Any]]
MAX_CHARS = 20_000
_ARITHMETIC = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def python_calls(text: str) -> Calls:
    """Calls of "[f(x=1), g.h(y='a')]", brackets optional. Positional arguments are dropped, as in BFCL. Raises ValueError."""
    text = text.strip("`\n ")
    text = ("" if text.startswith("[") else "[") + text + ("" if text.endswith("]") else "]")
    if len(text) > MAX_CHARS:
        raise ValueError(f"{len(text)} characters are no list of calls")
    try:
        body = ast.parse(text, mode="eval").body
        if not isinstance(body, ast.List):
            raise ValueError("no list of calls")
        return [_call(node) for node in body.elts]
    except (SyntaxError, RecursionError, MemoryError, ArithmeticError, TypeError) as e:
        raise ValueError(f"no list of calls: {type(e).__name__}: {e}") from None


def _call(node: ast.expr) -> dict[str, Any]:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
        raise ValueError(f"{ast.unparse(node)} is no call of a named function")
    if any(k.arg is None for k in node.keywords):
        raise ValueError(f"{ast.unparse(node)} unpacks its arguments")
    return {ast.unparse(node.func): {k.arg: _value(k.value) for k in node.keywords}}


def _value(node: ast.expr) -> Any:
    """The value that an argument stands for; a variable is its name."""
    match node:
        case ast.Constant(value=value):
            return "..." if value is ... else value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.List(elts=items):
            return [_value(i) for i in items]
        case ast.Tuple(elts=items):
            return tuple(_value(i) for i in items)
        case ast.Dict(keys=keys, values=values) if all(keys):
            return {_value(k): _value(v) for k, v in zip(keys, values, strict=True) if k is not None}
        case ast.Name(id=name):
            return name
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _ARITHMETIC[type(op)](_number(left), _number(right))
        case ast.Call(keywords=keywords) if keywords:
            return _call(node)
        case ast.Call() | ast.Subscript():
            return ast.unparse(node)
    raise ValueError(f"{ast.unparse(node)} is no value")


def _number(node: ast.expr) -> int | float:
    value = _value(node)
    if type(value) not in (int, float):
        raise ValueError(f"{ast.unparse(node)} is no number")
    return value


def json_calls(text: str) -> Calls:
    """ToolRL's: the JSON objects, one a line, of the last <tool_call> block, closed or not; a name "none" and bad lines are skipped."""
    _, tag, block = text.rpartition("<tool_call>")
    calls = []
    for line in block.partition("</tool_call>")[0].splitlines() if tag else ():
        try:
            call = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(call, dict) and isinstance(call.get("name"), str) and call["name"].lower() != "none":
            calls.append(call)
    return calls


def json_call_arguments(text: str) -> Calls:
    """`json_calls` as {name: parameters}, those without "parameters" left out."""
    return [{c["name"]: c["parameters"]} for c in json_calls(text) if isinstance(c.get("parameters"), dict)]


def call_sources(text: str) -> list[str]:
    """`json_calls` as Python source, for execution against a simulated API; without parameters, of a call that has none."""
    calls = [(c["name"], c.get("parameters")) for c in json_calls(text)]
    return [f"{name}({', '.join(f'{k}={v!r}' for k, v in (p if isinstance(p, dict) else {}).items())})" for name, p in calls]
