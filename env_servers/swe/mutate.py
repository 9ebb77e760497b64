"""Mutants: one small change to one place of a module, as a programmer might make by mistake. Text in, texts out; seeded
by order alone.

< <=   + -   and or   == !=   0 1   not x / x   a[i:] a[i+1:]   return x / return None
break continue   default   min max   an if taken out
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARED: dict[type, type] = {
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
_COUNTED: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.FloorDiv,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
}
_CALLED = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "lower": "upper",
    "upper": "lower",
    "ljust": "rjust",
    "rjust": "ljust",
    "sorted": "list",
}
_CALLED |= {
    "startswith": "endswith",
    "endswith": "startswith",
    "lstrip": "rstrip",
    "append": "extend",
    "partition": "rpartition",
    "reversed": "list",
}


@dataclass(frozen=True, slots=True)
class Mutant:
    source: str
    where: str
    """The function that it is in, as Class.method; empty at the top."""
    line: int
    what: str


def mutants(source: str) -> Iterator[Mutant]:
    """Every single change, in the order of the places. Lines that did not change are as they were."""
    tree = ast.parse(source)
    meaning = ast.dump(tree)
    for node, where in _places(tree, ""):
        for old, new, what in _changes(node):
            changed = _replaced(source, meaning, old, new)
            if changed is not None:
                yield Mutant(changed, where, getattr(old, "lineno", 0), what)


def _places(node: ast.AST, where: str) -> Iterator[tuple[ast.AST, str]]:
    for child in ast.iter_child_nodes(node):
        inner = where
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            inner = f"{where}.{child.name}" if where else child.name
        yield child, inner
        yield from _places(child, inner)


def _changes(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST, str]]:
    """(node to be replaced, node in its place, what was done)."""
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            if (other := _COMPARED.get(type(op))) is not None:
                ops = [other() if j == i else o for j, o in enumerate(node.ops)]
                yield node, ast.Compare(node.left, ops, node.comparators), f"{type(op).__name__} to {other.__name__}"
    elif isinstance(node, ast.BinOp) and (other := _COUNTED.get(type(node.op))) is not None:
        yield node, ast.BinOp(node.left, other(), node.right), f"{type(node.op).__name__} to {other.__name__}"
        if isinstance(node.op, ast.Sub | ast.FloorDiv):
            yield node, ast.BinOp(node.right, node.op, node.left), "operands swapped"
    elif isinstance(node, ast.AugAssign) and (other := _COUNTED.get(type(node.op))) is not None:
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
        yield from _called(node)


def _called(node: ast.Call) -> Iterator[tuple[ast.AST, ast.AST, str]]:
    function = node.func
    name = (
        function.id if isinstance(function, ast.Name) else function.attr if isinstance(function, ast.Attribute) else ""
    )
    if name in _CALLED:
        renamed = (
            ast.Attribute(function.value, _CALLED[name])
            if isinstance(function, ast.Attribute)
            else ast.Name(_CALLED[name])
        )
        yield (
            node,
            ast.Call(renamed, node.args, [] if name == "sorted" else node.keywords),
            f"{name} to {_CALLED[name]}",
        )
    if len(node.args) == 2 and not node.keywords and isinstance(function, ast.Name):
        yield node, ast.Call(function, node.args[::-1], []), "arguments swapped"


def _replaced(source: str, before: str, old: ast.AST, new: ast.AST) -> str | None:
    """`source` with the text of one node replaced, in parentheses where they are needed; None where that means what it
    did `before`, or nothing."""
    start = getattr(old, "lineno", None)
    end = getattr(old, "end_lineno", None)
    if start is None or end is None:
        return None
    lines = source.split("\n")
    text = ast.unparse(ast.fix_missing_locations(new))
    head = lines[start - 1].encode()[: old.col_offset].decode()  # type: ignore[attr-defined]
    tail = lines[end - 1].encode()[old.end_col_offset :].decode()  # type: ignore[attr-defined]

    def made(middle: str) -> str:
        return "\n".join([*lines[: start - 1], head + middle + tail, *lines[end:]])

    bare = _dump(made(text))
    safe = _dump(made(f"({text})")) if isinstance(old, ast.expr) else None
    if bare is None and safe is None:
        return None
    changed, meaning = (made(text), bare) if safe is None or bare == safe else (made(f"({text})"), safe)
    return None if meaning == before else changed


def _dump(source: str) -> str | None:
    try:
        return ast.dump(ast.parse(source))
    except SyntaxError:
        return None
