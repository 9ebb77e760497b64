"""What a script defines and imports: functions, classes, and modules that lie beside it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from .syntax import Function, names_in, statements


class Definitions:
    """The functions, classes and imports of a script.

    Attributes:
        tree: The script.
        directory: Where modules beside the script are found.
        modules: Name of a function -> the module beside the script that defines it; of functions that a list of the
            script names (function_names.py).
    """

    modules: dict[str, Self]

    def __init__(self, tree: ast.Module, directory: Path) -> None:
        self.tree = tree
        self.directory = directory
        self.modules = {}
        self._functions: dict[str, Function] = {}
        self._classes: dict[str, ast.ClassDef] = {}
        self._imported: dict[str, tuple[str, str]] = {}
        for node in ast.walk(tree):  # the outermost first
            if isinstance(node, Function):
                self._functions.setdefault(node.name, node)
            elif isinstance(node, ast.ClassDef):
                self._classes.setdefault(node.name, node)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self._imported.setdefault(alias.asname or alias.name, (node.module or "", alias.name))
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    self._imported.setdefault(alias.asname or alias.name, (alias.name, ""))

    def imported(self, name: str) -> tuple[str, str] | None:
        """Return (module, name in it) of a name that the script imports; ("module", "") of a module."""
        return self._imported.get(name)

    def local_module(self, name: str) -> Path | None:
        """Return the file of a module that lies beside the script, or in the package that the script is of; None where
        there is none."""
        parts = name.split(".")
        here = self.directory.absolute()
        roots = [self.directory, *(root for root in here.parents if parts[0] in here.relative_to(root).parts[:1])]
        paths = (root.joinpath(*parts).with_suffix(".py") for root in roots)
        return next((path for path in paths if name and path.is_file()), None)

    def is_defined(self, name: str) -> bool:
        """Return True if the script, or a module beside it that was read, defines this function or class."""
        if name in self.modules:
            return self.modules[name].is_defined(name)
        return name in self._functions or name in self._classes

    def kinds(self, bases: Sequence[str]) -> dict[str, str]:
        """Return the names of some classes of TRL's, of classes from elsewhere that are called like them, and of the
        script's own subclasses -> the class of TRL's."""
        kinds = {name: name for name in bases}
        for name, (_, imported) in self._imported.items():
            alike = next((kind for kind in bases if imported and kind in name), None)
            if alike is not None:
                kinds.setdefault(name, alike)
        for made in sorted(self._classes.values(), key=lambda node: node.lineno):
            for base in made.bases:
                name = ast.unparse(base).rpartition(".")[2]
                if name in kinds:
                    kinds.setdefault(made.name, kinds[name])
        return kinds

    def overrides(self, name: str) -> str:
        """Return the name of one of the script's classes with its methods, or of one from elsewhere with its module;
        empty for one of TRL's."""
        if name in self._classes:
            return f"{name} ({', '.join(self._methods(name)) or 'no methods'})"
        place = self.imported(name)
        return "" if place is None or place[0].partition(".")[0] == "trl" else f"{name} (of {place[0]})"

    def _methods(self, name: str) -> list[str]:
        """Return the names of the methods of one of the script's classes; [] for another name."""
        made = self._classes.get(name)
        return [member.name for member in made.body if isinstance(member, Function)] if made else []

    def function(self, name: str) -> ast.FunctionDef | None:
        """Return the definition of a function at the script's top level."""
        return next((n for n in self.tree.body if isinstance(n, ast.FunctionDef) and n.name == name), None)

    def _reward_function(self, name: str) -> Function | None:
        """Return the definition of a function anywhere in the script, or in a module that was read."""
        if name in self.modules:
            return self.modules[name]._reward_function(name)
        return self._functions.get(name)

    def parameters(self, name: str) -> list[str]:
        """Return the names of the parameters that a function of the script has to be given, and of `environments`.

        Empty for anything that is no function of the script.
        """
        function = self._reward_function(name)
        if function is None:
            return []
        arguments = function.args
        plain = [*arguments.posonlyargs, *arguments.args]
        required = plain[: len(plain) - len(arguments.defaults)]
        required += [a for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if not default]
        named = [a.arg for a in required]
        optional = [a.arg for a in (*plain, *arguments.kwonlyargs) if a.arg == "environments" and a.arg not in named]
        return [*named, *optional]

    def used_parameters(self, name: str) -> set[str]:
        """Return the parameters of a function of the script that its body reads."""
        function = self._reward_function(name)
        if function is None:
            return set()
        names = {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}
        read = {n.id for part in function.body for n in ast.walk(part) if isinstance(n, ast.Name)}
        return names & read

    def is_async(self, name: str) -> bool:
        """Return True for an `async def` of the script."""
        return isinstance(self._reward_function(name), ast.AsyncFunctionDef)

    def has_method(self, name: str, method: str) -> bool:
        """Return True if one of the script's classes has a method."""
        return method in self._methods(name)

    def called_with_own(self, source: str) -> bool:
        """Return True if an expression calls something that the script, or a module beside it, defines, as `Length()`,
        `partial(length, most=20)` and `make_reward(2)` do."""
        try:
            node = ast.parse(source, mode="eval").body
        except SyntaxError:
            return False
        return isinstance(node, ast.Call) and any(
            self.is_defined(name) or self._is_beside(name) for name in names_in(source)
        )

    def _is_beside(self, name: str) -> bool:
        """Return True for a name that is imported from a module beside the script."""
        place = self.imported(name)
        return place is not None and bool(place[1]) and self.local_module(place[0]) is not None

    def is_made(self, name: str) -> bool:
        """Return True if a name of the script's top level holds what such a call made, or a lambda."""
        assignments = [node for node, _ in statements(self.tree.body) if isinstance(node, ast.Assign)]
        made = [node.value for node in assignments if ast.unparse(node.targets[0]) == name]
        return bool(made) and (isinstance(made[-1], ast.Lambda) or self.called_with_own(ast.unparse(made[-1])))
