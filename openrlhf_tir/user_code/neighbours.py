"""The modules beside a user's file that it imports: reward.py with `from helpers import last_number`.

They go with the file where it is copied to. What is installed, or stands elsewhere on Python's path, is not meant, as
the directory of a user's file comes last there (plugins.py).
"""

from __future__ import annotations

import ast
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path


def neighbours(path: Path) -> dict[str, bytes]:
    """Return the modules beside a file that it imports, and those that these import; of a package all its files.

    Args:
        path: The user's file.

    Returns:
        Path relative to the file's directory -> text.
    """
    found: dict[str, bytes] = {}
    todo = [path]
    seen: set[str] = set()
    while todo:
        for name in sorted(_imported(todo.pop().read_bytes()) - seen):
            seen.add(name)
            files = _beside(name, path.parent)
            found |= {str(file.relative_to(path.parent)): file.read_bytes() for file in files}
            todo += files
    return found


def _imported(text: bytes) -> set[str]:
    """Return the first parts of the names of all modules that a program imports; none if it is no Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def _beside(name: str, directory: Path) -> list[Path]:
    """Return the files of a module or package in a directory; none if Python finds another one of this name first."""
    module, package = directory / f"{name}.py", directory / name
    if not module.is_file() and not package.is_dir():
        return []
    elsewhere = [place for place in sys.path if os.path.abspath(place) != str(directory.absolute())]
    if name in sys.builtin_module_names or PathFinder.find_spec(name, elsewhere) is not None:
        return []
    is_package = package.is_dir() and (not module.is_file() or (package / "__init__.py").is_file())
    return sorted(package.rglob("*.py")) if is_package else [module]
