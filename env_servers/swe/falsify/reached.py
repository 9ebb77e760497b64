"""Which statements of a test every passing run reaches."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence

from .syntax import _last_name

LEAVING = ("skip", "xfail", "exit", "skipTest")
"""Calls that end a passing test before its last line."""


def _always_reached(body: Sequence[ast.stmt], is_never_empty: Callable[[ast.expr], bool]) -> Iterator[ast.stmt]:
    """Yield the statements of a function that are reached in every passing run, and whose failure fails the function.

    Args:
        body: The statements.
        is_never_empty: Returns True for an iterable that surely has an element.
    """
    for statement in body:
        if isinstance(statement, ast.Return | ast.Raise | ast.Break | ast.Continue):
            return
        yield statement
        if isinstance(statement, ast.With | ast.AsyncWith):
            if not any(_catches(item.context_expr) for item in statement.items):
                yield from _always_reached(statement.body, is_never_empty)
        elif isinstance(statement, ast.For):
            is_left_early = any(isinstance(node, ast.Break | ast.Continue) for node in ast.walk(statement))
            if not is_left_early and is_never_empty(statement.iter):
                yield from _always_reached(statement.body, is_never_empty)
        elif isinstance(statement, ast.Try) and not statement.handlers:
            yield from _always_reached(statement.body, is_never_empty)
        if _may_end_early(statement):
            return


def _catches(context: ast.expr) -> bool:
    """Return True for a context manager that may suppress an exception: every one that is not known to let it pass."""
    name = _last_name(context).lower()
    return not any(word in name for word in ("warn", "subtest", "open", "patch", "chdir", "temporarydirectory"))


def _may_end_early(statement: ast.stmt) -> bool:
    """Return True if a test may end successfully within the statement."""
    pending: list[ast.AST] = [statement]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(node, ast.Return):
            return True
        if isinstance(node, ast.Call) and _last_name(node.func) in LEAVING:
            return True
        pending += ast.iter_child_nodes(node)
    return False
