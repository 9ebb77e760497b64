"""Pack a command line for another machine: copy its recipe and user code into a directory that is sent along.

`ray job submit` sends the repository. Besides, a run needs the user's recipe and the files that the recipe or a flag
names: they are copied into a directory inside the repository, and the arguments are rewritten to name the copies.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import own_files
from .problems import Problems
from .settings import RECIPES, find_recipe, read_recipe
from .toml_file import dump

_NAMED = re.compile(r"(?P<name>[^=]+:\w+)(?P<rest>=.*)?")


def pack(args: Sequence[str], directory: Path, caller: Path) -> list[str]:
    """Copy the recipe and every file of user code into `directory`, and return arguments that name the copies.

    Args:
        args: The arguments.
        directory: The directory of the copies. Their paths in the result are relative to its parent.
        caller: The directory in which the arguments were written.

    Raises:
        ConfigError: The recipe cannot be read.
    """
    out: list[str] = []
    for i, arg in enumerate(args):
        flag, equals, value = arg.partition("=")
        if flag == "--recipe" and equals:
            out.append(f"--recipe={_recipe(value, directory, caller)}")
        elif i and args[i - 1] == "--recipe":
            out.append(_recipe(arg, directory, caller))
        elif equals and (named := own_files.with_attribute(flag.removeprefix("--"), value)) != value:
            out.append(f"{flag}={_own(named, directory, caller)}")
        else:
            out.append(
                _own(own_files.with_attribute(args[i - 1].removeprefix("--"), arg) if i else arg, directory, caller)
            )
    return out


def _recipe(name: str, directory: Path, caller: Path) -> str:
    """Write a user's recipe, with all that it extends, as one file beside the copies. Recipes of the package stay."""
    path = find_recipe(name, caller)
    if path.is_relative_to(RECIPES):
        return name
    table = own_files.renamed(
        _table(path), lambda own: copied.partition("/")[2] if (copied := _copied(own, directory)) else own
    )
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "recipe.toml").write_text(dump(table))
    return f"{directory.name}/recipe.toml"


def _table(path: Path) -> dict[str, Any]:
    problems = Problems()
    table = read_recipe(str(path), problems)
    problems.raise_any()
    return table


def _own(arg: str, directory: Path, caller: Path) -> str:
    """Replace `path/file.py:name`, also as a key of reward.weights (`path/file.py:name=0.5`), by its copy."""
    m = _NAMED.fullmatch(arg)
    if m and (copied := _copied(own_files.absolute(caller)(m["name"]), directory)):
        return f"{copied}{m['rest'] or ''}"
    return arg


def _copied(name: str, directory: Path) -> str | None:
    """Copy the file of "/abs/file.py:name", and return the copy's name relative to the parent of `directory`.

    Return None if there is no such file.
    """
    where, _, attribute = name.rpartition(":")
    path = Path(where)
    if not where.endswith(".py") or not path.is_file():
        return None
    copy = own_files.copied(path, directory)
    return f"{copy.relative_to(directory.parent)}:{attribute}"
