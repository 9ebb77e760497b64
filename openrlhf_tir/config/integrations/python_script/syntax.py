"""What the syntax tree of a Python script says by itself: statements with their conditions, names, what a statement
changes. Nothing is evaluated here."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef
Tests = tuple[ast.expr, ...]
"""The conditions under which a statement is executed: all of them hold."""


def called(call: ast.Call) -> str:
    """The last part of what is called: trl.GRPOTrainer is GRPOTrainer."""
    node = call.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def statements(
    body: Sequence[ast.stmt], tests: Tests = (), *, into_functions: bool = False
) -> Iterator[tuple[ast.stmt, Tests]]:
    """Yield all statements, each with the conditions under which it is executed.

    Args:
        body: Statements in order.
        tests: The conditions under which these are executed.
        into_functions: Whether to go into functions and classes that they define.
    """
    for statement in body:
        yield statement, tests
        if isinstance(statement, Definition) and not into_functions:
            continue
        if isinstance(statement, ast.If):
            otherwise = (*tests, ast.UnaryOp(ast.Not(), statement.test))
            yield from statements(statement.body, (*tests, statement.test), into_functions=into_functions)
            yield from statements(statement.orelse, otherwise, into_functions=into_functions)
            continue
        parts = [statement, *getattr(statement, "handlers", []), *getattr(statement, "cases", [])]
        for part in parts:
            for name in ("body", "orelse", "finalbody"):
                inner = getattr(part, name, None)
                if isinstance(inner, list):
                    yield from statements(inner, tests, into_functions=into_functions)


def names_in(source: str) -> list[str]:
    """Return the names in the source of an expression."""
    return [n.id for n in ast.walk(ast.parse(source, mode="eval")) if isinstance(n, ast.Name)]


def bound_names(node: ast.stmt) -> set[str]:
    """Return the names that a function binds itself: arguments, what it assigns, functions inside of it."""
    if not isinstance(node, Function):
        return set()
    arguments = [n.arg for n in ast.walk(node.args) if isinstance(n, ast.arg)]
    stored = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    inner = [n.name for n in ast.walk(node) if isinstance(n, Definition) and n is not node]
    return {*arguments, *stored, *inner}


def root_name(node: ast.expr) -> str:
    """Return the name that an expression such as table["a"]["b"] begins with; empty where it begins with none."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def bindings(function: ast.FunctionDef, call: ast.Call) -> dict[str, ast.expr]:
    """Return what the parameters of a function are given by a call, `**others` as a table.

    Parameters whose value stands in a `*list` or a `**table` of the call are left out.
    """
    arguments = function.args
    plain = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    named = [*plain, *(a.arg for a in arguments.kwonlyargs)]
    is_spread = any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords)
    bound: dict[str, ast.expr] = {}
    if not is_spread:
        bound |= dict(zip(reversed(plain), reversed(arguments.defaults), strict=False))
        pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        bound |= {a.arg: default for a, default in pairs if default is not None}
        bound |= dict(zip(plain, call.args, strict=False))
    bound |= {k.arg: k.value for k in call.keywords if k.arg in named}
    if arguments.kwarg is not None and not is_spread:
        others = [k for k in call.keywords if k.arg not in named]
        table = ast.Dict([ast.Constant(k.arg) for k in others], [k.value for k in others])
        bound[arguments.kwarg.arg] = ast.fix_missing_locations(ast.copy_location(table, call))
    return bound


def added_to(statement: ast.stmt, name: str) -> ast.expr | None:
    """Return what a statement adds to the list of a name; None where it adds nothing."""
    match statement:
        case ast.AugAssign(target=ast.Name(id=target), op=ast.Add(), value=added):
            return added if target == name else None
        case ast.Expr(
            value=ast.Call(func=ast.Attribute(value=ast.Name(id=target), attr="append" | "extend"), args=[added, *_])
        ):
            return added if target == name else None
    return None


def put_into(statement: ast.stmt, name: str) -> ast.expr | None:
    """Return the table of what `t["k"] = v` puts into the table of a name; None for another statement."""
    match statement:
        case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=target), slice=key), *_], value=value):
            return ast.copy_location(ast.Dict([key], [value]), statement) if target == name else None
    return None


def has_target_in(statement: ast.stmt, name: str) -> bool:
    """Return True if a statement assigns or deletes something inside the table of a name, as `t |= more` does too."""
    if isinstance(statement, ast.AugAssign):
        return root_name(statement.target) == name
    targets = statement.targets if isinstance(statement, ast.Assign | ast.Delete) else []
    parts = [part for target in targets for part in ast.walk(target) if isinstance(part, ast.Subscript)]
    return any(not isinstance(part.ctx, ast.Load) and root_name(part) == name for part in parts)


def at_line(node: ast.expr, line: int) -> ast.expr:
    """Return an expression whose names count as used at a line."""
    for part in ast.walk(node):
        if isinstance(part, ast.expr):
            part.lineno = line
    return node


class WithConstant(ast.NodeTransformer):
    """Puts a constant in the place of a name."""

    def __init__(self, name: str, value: Any) -> None:
        self.name = name
        self.value = value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.copy_location(ast.Constant(self.value), node) if node.id == self.name else node
