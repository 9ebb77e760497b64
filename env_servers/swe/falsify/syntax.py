"""Questions about one syntax node, whatever file it is in."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

SHORTEST_SEARCHED = 4
"""Characters of the shortest text whose falsified copy is surely not found within another text."""


def _values_in(tree: ast.AST) -> list[Any]:
    """Return the numbers and texts in a part of a file; negative numbers with their sign."""
    signed = [node for node in ast.walk(tree) if isinstance(node, ast.UnaryOp) and _number(node) is not None]
    inner = {id(node.operand) for node in signed}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in inner]
    values = [*(_number(node) for node in signed), *(node.value for node in constants)]
    return [value for value in values if type(value) in (int, float, str)]


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _is_literal_table(decorator: ast.expr) -> bool:
    """Return True for @parametrize with values written in place, and for any other decorator."""
    if not isinstance(decorator, ast.Call) or _last_name(decorator.func) != "parametrize":
        return True
    table = decorator.args[1] if len(decorator.args) > 1 else None
    if not isinstance(table, ast.List | ast.Tuple):
        return False
    rows = [row.args if isinstance(row, ast.Call) and _last_name(row) == "param" else [row] for row in table.elts]
    return all(_is_literal(value) for row in rows for value in row)


def _is_searchable(node: ast.expr) -> bool:
    """Return True for a text that is long enough for its changed copy to occur in no other text."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) >= SHORTEST_SEARCHED


def _leaves(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the constants of a literal whose change changes its value: of a dict, the values only."""
    if isinstance(node, ast.Constant | ast.UnaryOp):  # a sign is part of its number
        yield node
    elif isinstance(node, ast.Dict):
        for value in node.values:
            yield from _leaves(value)
    elif isinstance(node, ast.List | ast.Tuple | ast.Set):
        for element in node.elts:
            yield from _leaves(element)


def _cells(names: Sequence[str], rows: Sequence[ast.expr], name: str) -> list[ast.expr] | None:
    """Return the cells of a table in the column `name`; None if one of them is not a literal."""
    if name not in names:
        return None
    column = names.index(name)
    cells: list[ast.expr] = []
    for row in rows:
        values: Sequence[ast.expr] = [row]
        if isinstance(row, ast.Call) and _last_name(row.func) == "param":
            values = row.args
        elif len(names) > 1:
            values = row.elts if isinstance(row, ast.Tuple | ast.List) else []
        if column >= len(values) or not _is_literal(values[column]):
            return None
        cells.append(values[column])
    return cells or None


def _names(target: ast.expr) -> list[str]:
    """Return the names that a loop binds, in order, with "" for a target that is not a name."""
    targets = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    return [t.id if isinstance(t, ast.Name) else "" for t in targets]


def _number(node: ast.expr | None) -> int | float | None:
    try:
        value = ast.literal_eval(node) if node is not None else None
    except (ValueError, TypeError):
        return None
    return value if type(value) in (int, float) else None


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _functions_in(contents: Iterator[bytes]) -> set[str]:
    """Return the functions of files, dumped in a form that does not depend on where they are."""
    dumped_functions: set[str] = set()
    for content in contents:
        try:
            tree = ast.parse(content.decode())
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        dumped_functions |= {
            ast.dump(n) for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
        }
    return dumped_functions
