"""The code of some functions of a script with everything that they need, for a file of its own."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence

from .syntax import Definition, Function, bound_names, names_in, statements
from .values import SourceReader

LEFT_OUT = ("trl", "accelerate")
"""Packages whose names no reward function or tool needs; an import of them is not copied."""


def code_of(reader: SourceReader, names: Sequence[str], made: Mapping[str, str] | None = None) -> str:
    """Return the source of some functions and of what they need: imports, constants, other functions and classes.

    Functions inside of others are taken out of them.

    Args:
        reader: The script.
        names: The functions.
        made: Names that are given the value of an expression, behind everything else.
    """
    made = made or {}
    needed, seen = _needed(reader.tree, names, [name for source in made.values() for name in names_in(source)])
    imports = [node for node in needed if isinstance(node, ast.Import | ast.ImportFrom)]
    others = [node for node in needed if not isinstance(node, ast.Import | ast.ImportFrom)]
    code_beside = {id(node): code for node in imports if (code := _code_beside(reader, node))}
    kept_imports = [ast.unparse(node) for node in imports if id(node) not in code_beside]
    blocks = ["\n".join(kept_imports)] if kept_imports else []
    blocks += [code.rstrip() for code in code_beside.values()]
    blocks += _code_of_modules(reader, seen)
    blocks += map(ast.unparse, others)
    if made:
        blocks.append("\n".join(f"{name} = {source}" for name, source in made.items()))
    return "\n\n\n".join(blocks) + "\n"


def _needed(tree: ast.Module, names: Sequence[str], more: Sequence[str]) -> tuple[list[ast.stmt], set[str]]:
    """Return the statements that some functions need, in the order of their lines, and every name that was looked up.

    Args:
        tree: The script.
        names: The functions. A method counts only if it is one of these.
        more: Other names that are needed.
    """
    defined = _definitions(tree)
    methods = {
        member.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for member in node.body
        if isinstance(member, Function)
    }
    assigned = {
        target.id: node
        for node, _ in statements(tree.body)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    imported = _imports(tree)
    needed: dict[int, ast.stmt] = {}
    pending = [*names, *more]
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        node: ast.stmt | None = assigned.get(name) or imported.get(name)
        if name in defined and (name not in methods or name in names):
            node = defined[name]
        if node is None or node.lineno in needed:
            continue
        needed[node.lineno] = node
        bound = bound_names(node)
        pending += [part.id for part in ast.walk(node) if isinstance(part, ast.Name) and part.id not in bound]
    return [needed[line] for line in sorted(needed)], seen


def _imports(tree: ast.Module) -> dict[str, ast.stmt]:
    """Return each name that the script imports -> the import, without those of the packages in LEFT_OUT."""
    imported: dict[str, ast.stmt] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            package = (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
            if package.partition(".")[0] not in LEFT_OUT:
                imported |= {(alias.asname or alias.name).partition(".")[0]: node for alias in node.names}
    return imported


def _code_of_modules(reader: SourceReader, names: Collection[str]) -> list[str]:
    """Return the code of the names that modules beside the script define (`modules`), a text for each module."""
    defined = _definitions(reader.tree)
    elsewhere = [name for name in reader.modules if name in names and name not in defined]
    modules = {id(reader.modules[name]): reader.modules[name] for name in elsewhere}
    return [
        code_of(module, [name for name in elsewhere if reader.modules[name] is module]).rstrip()
        for module in modules.values()
    ]


def _definitions(tree: ast.Module) -> dict[str, Definition]:
    """Return every function and class of a script by name."""
    return {node.name: node for node in ast.walk(tree) if isinstance(node, Definition)}


def _code_beside(reader: SourceReader, node: ast.Import | ast.ImportFrom) -> str:
    """Return the code that an import of a module beside the script stands for; empty for other modules.

    The file with the functions lies elsewhere, where it cannot import its old neighbours.
    """
    if not isinstance(node, ast.ImportFrom) or any(alias.asname or alias.name == "*" for alias in node.names):
        return ""
    module = reader.module_beside(node.module or "")
    return "" if module is None else code_of(module, [alias.name for alias in node.names])
