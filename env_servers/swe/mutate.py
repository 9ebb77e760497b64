"""Mutants: one small change at one place of a module, as a programmer might make by mistake.

The order of the mutants is fixed; a seed only shuffles them later.

    < <=   + -   and or   == !=   0 1   not x / x   a[i:] a[i+1:]   return x / return None
    break continue   a default value   min max   a removed `if`
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_ARITHMETIC: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.FloorDiv,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
}
_FUNCTION_NAMES = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "lower": "upper",
    "upper": "lower",
    "ljust": "rjust",
    "rjust": "ljust",
    "sorted": "list",
    "startswith": "endswith",
    "endswith": "startswith",
    "lstrip": "rstrip",
    "append": "extend",
    "partition": "rpartition",
    "reversed": "list",
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed module.

    Attributes:
        source: The changed source.
        line: The line of the change.
        change: What was changed.
    """

    source: str
    line: int
    change: str


def mutants(source: str) -> Iterator[Mutant]:
    """Yield every single change, in a fixed order. All other lines are as they were."""
    tree = ast.parse(source)
    meaning = ast.dump(tree)
    for node in ast.walk(tree):
        for old, new, change in _changes(node):
            changed = _replaced(source, meaning, old, new)
            if changed is not None:
                yield Mutant(changed, getattr(old, "lineno", 0), change)


def _changes(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST, str]]:
    """Yield a node, the node that replaces it, and a description, for every change of a node."""
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            if (other := _COMPARISONS.get(type(op))) is not None:
                ops = [other() if j == i else o for j, o in enumerate(node.ops)]
                yield node, ast.Compare(node.left, ops, node.comparators), f"{type(op).__name__} to {other.__name__}"
    elif isinstance(node, ast.BinOp) and (other := _ARITHMETIC.get(type(node.op))) is not None:
        yield node, ast.BinOp(node.left, other(), node.right), f"{type(node.op).__name__} to {other.__name__}"
        if isinstance(node.op, ast.Sub | ast.FloorDiv):
            yield node, ast.BinOp(node.right, node.op, node.left), "operands swapped"
    elif isinstance(node, ast.AugAssign) and (other := _ARITHMETIC.get(type(node.op))) is not None:
        yield node, ast.AugAssign(node.target, other(), node.value), f"{type(node.op).__name__} to {other.__name__}"
    elif isinstance(node, ast.BoolOp):
        other = ast.Or if isinstance(node.op, ast.And) else ast.And
        yield node, ast.BoolOp(other(), node.values), f"{type(node.op).__name__} to {other.__name__}"
        yield node, node.values[0], "second condition dropped"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node, node.operand, f"{type(node.op).__name__} dropped"
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield node, ast.Constant(node.value + 1), "constant one more"
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield node, ast.Constant(not node.value), "constant inverted"
    elif (
        isinstance(node, ast.Return)
        and node.value is not None
        and not (isinstance(node.value, ast.Constant) and node.value.value is None)
    ):
        yield node, ast.Return(ast.Constant(None)), "returns None"
    elif isinstance(node, ast.Break | ast.Continue):
        yield node, ast.Continue() if isinstance(node, ast.Break) else ast.Break(), "break and continue swapped"
    elif isinstance(node, ast.IfExp):
        yield node, ast.IfExp(node.test, node.orelse, node.body), "branches swapped"
    elif isinstance(node, ast.Call):
        yield from _call_changes(node)


def _call_changes(node: ast.Call) -> Iterator[tuple[ast.AST, ast.AST, str]]:
    """Yield the changes of a call, as `_changes` does."""
    function = node.func
    name = ""
    if isinstance(function, ast.Name):
        name = function.id
    elif isinstance(function, ast.Attribute):
        name = function.attr
    if name in _FUNCTION_NAMES:
        renamed = (
            ast.Attribute(function.value, _FUNCTION_NAMES[name])
            if isinstance(function, ast.Attribute)
            else ast.Name(_FUNCTION_NAMES[name])
        )
        yield (
            node,
            ast.Call(renamed, node.args, [] if name == "sorted" else node.keywords),
            f"{name} to {_FUNCTION_NAMES[name]}",
        )
    if len(node.args) == 2 and not node.keywords and isinstance(function, ast.Name):
        yield node, ast.Call(function, node.args[::-1], []), "arguments swapped"


def _replaced(source: str, meaning: str, old: ast.AST, new: ast.AST) -> str | None:
    """Return the source with the text of one node replaced, in parentheses if they are needed.

    Args:
        source: The source.
        meaning: The dump of its syntax tree.
        old: The node that is replaced.
        new: The node that replaces it.

    Returns:
        The new source; None if it does not parse, or means the same as before.
    """
    start = getattr(old, "lineno", None)
    end = getattr(old, "end_lineno", None)
    if start is None or end is None:
        return None
    lines = source.split("\n")
    text = ast.unparse(ast.fix_missing_locations(new))
    head = lines[start - 1].encode()[: old.col_offset].decode()  # type: ignore[attr-defined]
    tail = lines[end - 1].encode()[old.end_col_offset :].decode()  # type: ignore[attr-defined]

    def with_middle(middle: str) -> str:
        return "\n".join([*lines[: start - 1], head + middle + tail, *lines[end:]])

    bare = _dump(with_middle(text))
    safe = _dump(with_middle(f"({text})")) if isinstance(old, ast.expr) else None
    if bare is None and safe is None:
        return None
    if safe is None or bare == safe:
        changed, new_meaning = with_middle(text), bare
    else:
        changed, new_meaning = with_middle(f"({text})"), safe
    return None if new_meaning == meaning else changed


def _dump(source: str) -> str | None:
    """Return the dump of the syntax tree; None if the source does not parse."""
    try:
        return ast.dump(ast.parse(source))
    except SyntaxError:
        return None
