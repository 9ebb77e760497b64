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

_NAMED = re.compile(r"(?P<name>[^=]+(?::\w+|\.py))(?P<rest>=.*)?")


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
    for before, arg in zip(["", *args], args, strict=False):
        flag, equals, value = arg.partition("=")
        if arg.startswith("--") and equals:
            out.append(f"{flag}={_value(flag, value, directory, caller)}")
        else:
            out.append(_value(before, arg, directory, caller))
    return out


def _value(flag: str, value: str, directory: Path, caller: Path) -> str:
    """Return the name of the copy of what `value`, the word behind `flag`, names; any other value as it is."""
    if flag == "--recipe":
        return _recipe(value, directory, caller)
    return _own(own_files.with_attribute(flag.removeprefix("--"), value), directory, caller)


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
    """Replace `path/file.py:name` or `path/file.py`, also as a key (`path/file.py:name=0.5`), by its copy."""
    m = _NAMED.fullmatch(arg)
    if m and (copied := _copied(own_files.absolute(caller)(m["name"]), directory)):
        return f"{copied}{m['rest'] or ''}"
    return arg


def _copied(name: str, directory: Path) -> str | None:
    """Copy the file of "/abs/file.py:name" or "/abs/file.py", and return its name relative to the parent of
    `directory`.

    Return None if there is no such file.
    """
    named = own_files.FILE.fullmatch(name)
    if named is None or not Path(named["path"]).is_file():
        return None
    copy = own_files.copied(Path(named["path"]), directory)
    return f"{copy.relative_to(directory.parent)}{named['attribute'] or ''}"
