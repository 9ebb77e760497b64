"""Read the calls that a model wrote, in BFCL's Python notation or in ToolRL's JSON lines, without evaluating anything.

Source: gorilla's ast_parse and ToolRL's BFCL handler (see specs/Eval.md).
"""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable
from typing import Any

Calls = list[dict[str, Any]]
"""Calls, each as {name: arguments}."""
MAX_CHARS = 20_000
"""Characters of the longest list of calls that is parsed."""
MAX_BITS = 4096
"""Bits of the largest integer that arithmetic may produce: 9**9**9 would never end."""
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_SIGNS: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
    ast.Not: operator.not_,
}


def python_calls(text: str) -> Calls:
    """Return the calls of "[f(x=1), g.h(y='a')]", in which the brackets are optional.

    As in BFCL, positional arguments are dropped, a function that is not a name ("f()(x=1)", "1()") is called "", and
    the name of an unpacked "**x" is None. Such calls are never right, but they count as calls if nothing should be
    called.

    Raises:
        ValueError: The text is not a list of calls.
    """
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
    if not isinstance(node, ast.Call):
        raise ValueError(f"{ast.unparse(node)} is no call")
    return {_name(node.func): {k.arg: _value(k.value) for k in node.keywords}}


def _name(function: ast.expr) -> str:
    """Return the dotted name of a function. A prefix that is not a name is left out: "g" of "f().g", "" of "x[0]"."""
    match function:
        case ast.Attribute(value=owner, attr=last):
            prefix = _name(owner)
            return f"{prefix}.{last}" if prefix else last
        case ast.Name(id=name):
            return name
    return ""


def _value(node: ast.expr) -> Any:
    """Return the value of an argument; for a variable its name. Raises ValueError."""
    match node:
        case ast.Constant(value=value):
            return "..." if value is ... else value
        case ast.UnaryOp(operand=ast.Constant(value=int() | float() | complex() as number)):
            return -number  # for every operator: BFCL reads "+1" and "not 1" as a minus, too
        case ast.List(elts=items):
            return [_value(i) for i in items]
        case ast.Tuple(elts=items):
            return tuple(_value(i) for i in items)
        case ast.Dict(keys=keys, values=values) if all(keys):
            return {_value(k): _value(v) for k, v in zip(keys, values, strict=True) if k is not None}
        case ast.Name(id=name):
            return name
        case ast.BinOp():
            return _arithmetic(node)
        case ast.Call(keywords=keywords) if keywords:
            return _call(node)
        case ast.Call():
            return ast.unparse(node)
        case ast.Subscript(value=of, slice=index):
            return f"{ast.unparse(of)}[{ast.unparse(index)}]"
    raise ValueError(f"{ast.unparse(node)} is no value")


def _arithmetic(node: ast.expr) -> Any:
    """Return the value of operators on numbers, strings and lists, without variables. Raises ValueError if it would be
    too large."""
    if isinstance(node, ast.UnaryOp):
        return _SIGNS[type(node.op)](_arithmetic(node.operand))
    if not isinstance(node, ast.BinOp):
        return ast.literal_eval(node)
    left = _arithmetic(node.left)
    right = _arithmetic(node.right)
    match node.op:
        case ast.Pow() if isinstance(left, int) and isinstance(right, int):
            size = left.bit_length() * max(right, 0)
        case ast.LShift() if isinstance(left, int) and isinstance(right, int):
            size = left.bit_length() + right
        case ast.Mult() if isinstance(left, int) and isinstance(right, int):
            size = left.bit_length() + right.bit_length()
        case ast.Mult() if isinstance(left, int) or isinstance(right, int):
            times, items = (left, right) if isinstance(left, int) else (right, left)
            size = times * len(items) if isinstance(items, str | bytes | list | tuple) else 0
        case ast.Mod() if isinstance(left, str | bytes):
            raise ValueError(f"{ast.unparse(node)} formats text")
        case _:
            size = 0
    if size > MAX_BITS or type(node.op) not in _ARITHMETIC:
        raise ValueError(f"{ast.unparse(node)} is not computed")
    return _ARITHMETIC[type(node.op)](left, right)


def json_lines(text: str) -> list[Any]:
    """Return the JSON value of every line of the last <tool_call> block that is JSON.

    The block need not be closed. Without an opening tag all of the text up to a closing tag is the block, as ToolRL's
    scripts split it.
    """
    block = text.rpartition("<tool_call>")[2].partition("</tool_call>")[0]
    values = []
    for line in block.strip().split("\n"):
        try:
            values.append(json.loads(line))
        except (ValueError, RecursionError):
            continue
    return values


def _is_call(call: dict[str, Any]) -> bool:
    """Return True unless the call's name is "none", with which ToolRL's prompt lets the model decline."""
    return call["name"].strip().lower() != "none"


def json_calls(text: str) -> Calls:
    """Return the named calls of ToolRL's notation: the JSON objects of the last <tool_call> block, one a line."""
    values = json_lines(text) if "<tool_call>" in text else []
    return [
        value for value in values if isinstance(value, dict) and isinstance(value.get("name"), str) and _is_call(value)
    ]


def json_call_arguments(text: str) -> Calls:
    """Return `json_calls` as {name: parameters}, without calls that have no "parameters".

    Parameters may be any value that the model wrote.
    """
    return [{call["name"]: call["parameters"]} for call in json_calls(text) if "parameters" in call]
