"""Which statements of a test every passing run reaches. A falsified assertion anywhere else might not fail.

    with open(f): ...        reached, unless the context may suppress the failure: `with raises(...)`
    for x in [1, 2]: ...     reached, if the loop surely runs and is not left early
    try: ... finally: ...    reached; not if there is an `except`
    if x: ...                not reached

What follows a statement that may return or skip is not reached either.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from .parsed_file import ParsedFile
from .syntax import Function, is_own_name, last_name, number_of

LEAVING = ("skip", "xfail", "exit", "skipTest")
"""Calls that end a passing test before its last line."""
TRANSPARENT = ("warn", "subtest", "open", "patch", "chdir", "temporarydirectory")
"""Parts of the names of context managers that let every exception pass."""


def reached_statements(file: ParsedFile, function: Function) -> Iterator[ast.stmt]:
    """Yield the statements that are reached in every passing run, and whose failure fails the function."""
    return _reached(function.body, partial(_is_never_empty, file, function))


def called_functions(file: ParsedFile, function: Function) -> list[str]:
    """Return the names of the functions of the file, and of the methods of the test's class, that a test always calls,
    as statements of their own."""
    names = []
    for statement in reached_statements(file, function):
        value = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(value, ast.Await):
            value = value.value
        if isinstance(value, ast.Call) and is_own_name(value.func):
            names.append(last_name(value))
    return names


def _reached(body: Sequence[ast.stmt], is_never_empty: Callable[[ast.expr], bool]) -> Iterator[ast.stmt]:
    """Yield the reached statements of a block.

    Args:
        body: The statements.
        is_never_empty: Returns True for an iterable that surely has an element.
    """
    for statement in body:
        if isinstance(statement, ast.Return | ast.Raise | ast.Break | ast.Continue):
            return
        yield statement
        if isinstance(statement, ast.With | ast.AsyncWith):
            if not any(_may_suppress(item.context_expr) for item in statement.items):
                yield from _reached(statement.body, is_never_empty)
        elif isinstance(statement, ast.For):
            is_left_early = any(isinstance(node, ast.Break | ast.Continue) for node in ast.walk(statement))
            if not is_left_early and is_never_empty(statement.iter):
                yield from _reached(statement.body, is_never_empty)
        elif isinstance(statement, ast.Try) and not statement.handlers:
            yield from _reached(statement.body, is_never_empty)
        if _may_end_test(statement):
            return


def _may_suppress(context: ast.expr) -> bool:
    """Return True for a context manager that may suppress an exception: every one that is not known to let it pass."""
    name = last_name(context).lower()
    return not any(word in name for word in TRANSPARENT)


def _may_end_test(statement: ast.stmt) -> bool:
    """Return True if a test may end successfully within the statement."""
    pending: list[ast.AST] = [statement]
    while pending:
        node = pending.pop()
        if isinstance(node, Function | ast.Lambda | ast.ClassDef):
            continue  # its body does not run here
        if isinstance(node, ast.Return):
            return True
        if isinstance(node, ast.Call) and last_name(node.func) in LEAVING:
            return True
        pending += ast.iter_child_nodes(node)
    return False


def _is_never_empty(file: ParsedFile, function: Function, node: ast.expr) -> bool:
    """Return True if a loop over `node` surely runs at least once.

    `node` is a non-empty literal, the name of a constant that is one, or a built-in function or a method of such.
    """
    if isinstance(node, ast.Call):
        name = last_name(node.func)
        if name == "range" and len(node.args) == 1:
            return (number_of(node.args[0]) or 0) >= 1
        if name in ("items", "keys", "values") and isinstance(node.func, ast.Attribute) and not node.args:
            return _is_never_empty(file, function, node.func.value)
        if name in ("enumerate", "sorted", "reversed", "zip", "list") and node.args:
            return all(_is_never_empty(file, function, element) for element in node.args)
        return False
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return bool(node.elts) and not any(isinstance(element, ast.Starred) for element in node.elts)
    if isinstance(node, ast.Dict):
        return bool(node.keys) and None not in node.keys  # the key of `**other` is None
    value = _value_of(file, function, node)
    return isinstance(value, ast.List | ast.Tuple | ast.Set | ast.Dict) and _is_never_empty(file, function, value)


def _value_of(file: ParsedFile, function: Function, node: ast.expr) -> ast.expr | None:
    """Return what a name or an attribute of `self` stands for; None if that is not one expression."""
    if isinstance(node, ast.Name):
        uses = [name for name in ast.walk(function) if isinstance(name, ast.Name) and name.id == node.id]
        stores = sum(isinstance(name.ctx, ast.Store) for name in uses)
        if not stores:
            return file.constants.get(node.id)
        return _assigned(function, node.id) if stores == 1 else None
    if isinstance(node, ast.Attribute) and is_own_name(node):
        return file.attributes.get(node.attr)
    return None


def _assigned(function: Function, name: str) -> ast.expr | None:
    """Return the value that a function assigns to a name in its outermost block; None if it does so in another one."""
    for statement in function.body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            if isinstance(target, ast.Name) and target.id == name:
                return statement.value
    return None
