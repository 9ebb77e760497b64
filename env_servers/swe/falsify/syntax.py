"""Questions about one syntax node, whatever file it is in."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeGuard

Function = ast.FunctionDef | ast.AsyncFunctionDef
NAME = re.compile(rb"[A-Za-z_]\w*")
MAX_NUMBER = 1e300
SHORTEST_SEARCHED = 4
"""Characters of the shortest text whose falsified copy is surely not found within another text."""


def last_name(node: ast.expr) -> str:
    """Return the last part of a name, of an attribute or of what is called: "raises" of `pytest.raises(...)`."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def is_own_name(node: ast.expr) -> bool:
    """Return True for a name, and for an attribute of `self` or `cls`, but for no attribute of another object."""
    if isinstance(node, ast.Attribute):
        node = node.value
        return isinstance(node, ast.Name) and node.id in ("self", "cls")
    return isinstance(node, ast.Name)


def argument(call: ast.Call, name: str) -> ast.expr | None:
    """Return the keyword argument `name` of a call; None if it has none."""
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def number_of(node: ast.expr | None) -> int | float | None:
    """Return the number that a node is, with its sign; None if it is none, or if multiples of it exceed a float."""
    try:
        value: Any = ast.literal_eval(node) if node is not None else None
    except (ValueError, TypeError):
        return None
    return value if type(value) in (int, float) and abs(value) < MAX_NUMBER else None


def is_literal(node: ast.expr) -> bool:
    """Return True for a constant, and for a container of literals."""
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def is_searchable(node: ast.expr) -> bool:
    """Return True for a text that is long enough for its changed copy to occur in no other text."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) >= SHORTEST_SEARCHED


def is_literal_table(decorator: ast.expr) -> bool:
    """Return True for @parametrize with values written in place, and for any other decorator."""
    if not isinstance(decorator, ast.Call) or last_name(decorator.func) != "parametrize":
        return True
    table = decorator.args[1] if len(decorator.args) > 1 else None
    if not isinstance(table, ast.List | ast.Tuple):
        return False
    rows = [row.args if _is_param(row) else [row] for row in table.elts]
    return all(is_literal(value) for row in rows for value in row)


def _is_param(row: ast.expr) -> TypeGuard[ast.Call]:
    return isinstance(row, ast.Call) and last_name(row) == "param"


def constants_in(literal: ast.expr) -> Iterator[ast.expr]:
    """Yield the constants of a literal whose change changes its value: of a dict, those of the values only."""
    if isinstance(literal, ast.Constant | ast.UnaryOp):  # a sign is part of its number
        yield literal
    elif isinstance(literal, ast.Dict):
        for value in literal.values:
            yield from constants_in(value)
    elif isinstance(literal, ast.List | ast.Tuple | ast.Set):
        for element in literal.elts:
            yield from constants_in(element)


def column_of(name: str, names: Sequence[str], rows: Sequence[ast.expr]) -> list[ast.expr] | None:
    """Return the cells of a table in the column `name`; None if one of them is not a literal.

    Args:
        name: The column.
        names: The names of all columns.
        rows: The rows. If there are several columns, each is a tuple, a list or a `pytest.param`.
    """
    if name not in names:
        return None
    column = names.index(name)
    cells: list[ast.expr] = []
    for row in rows:
        values: Sequence[ast.expr] = [row]
        if _is_param(row):
            values = row.args
        elif len(names) > 1:
            values = row.elts if isinstance(row, ast.Tuple | ast.List) else []
        if column >= len(values) or not is_literal(values[column]):
            return None
        cells.append(values[column])
    return cells or None


def bound_names(target: ast.expr) -> list[str]:
    """Return the names that a loop binds, in order, with "" for a target that is not a name."""
    targets = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    return [name.id if isinstance(name, ast.Name) else "" for name in targets]


def values_in(tree: ast.AST) -> list[Any]:
    """Return the numbers and texts in a part of a file; negative numbers with their sign."""
    signed = [node for node in ast.walk(tree) if isinstance(node, ast.UnaryOp) and number_of(node) is not None]
    operands = {id(node.operand) for node in signed}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in operands]
    values = [*(number_of(node) for node in signed), *(node.value for node in constants)]
    return [value for value in values if type(value) in (int, float, str)]


def functions_in(contents: Iterable[bytes]) -> list[Function]:
    """Return the functions of files; of a file that is not Python none."""
    functions: list[Function] = []
    for content in contents:
        try:
            tree = ast.parse(content.decode())
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        functions += [node for node in ast.walk(tree) if isinstance(node, Function)]
    return functions


def is_fixture(function: Function) -> bool:
    """Return True for a fixture of pytest."""
    return any(last_name(decorator) == "fixture" for decorator in function.decorator_list)


def arguments_of(function: Function) -> set[str]:
    """Return the names of a function's arguments."""
    arguments = function.args
    return {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}


BASES = re.compile(rb"^[ \t]*class[ \t]+\w+[ \t]*\(([^)]*)\)", re.MULTILINE)


def base_classes(contents: Iterable[bytes]) -> set[str]:
    """Return the names that class statements of files derive from."""
    return {name.decode() for content in contents for bases in BASES.findall(content) for name in NAME.findall(bases)}
