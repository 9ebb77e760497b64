"""Find and import the modules beside a user's file that it imports: reward.py with `from helpers import last_number`.

They go with the file where it is copied to. What is installed is not meant. Which modules these are depends on the
directory and on what is installed, but neither on the current directory nor on what the process has loaded: they are
imported by a finder of their own (`use`), so that sys.path stays as it is.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import machinery
from pathlib import Path
from types import ModuleType

from ..errors import ConfigError

COPY = re.compile(r".+-[0-9a-f]{8}\.py")
"""Name of a copy that a run has made of a file (config/own_files.py)."""
MAX_BYTES = 64 * 2**20
"""Size of all modules beside one file. A run copies them, and a submitted job sends them over the network."""


def neighbours(path: Path) -> dict[str, bytes]:
    """Return the modules beside a file that it imports, and those that these import.

    Of a package these are all files, also data, except for hidden ones and `__pycache__`.

    Args:
        path: The user's file.

    Returns:
        Path relative to the file's directory -> content.

    Raises:
        ConfigError: They have more than MAX_BYTES.
    """
    found: dict[str, bytes] = {}
    todo = [path]
    seen: set[str] = set()
    size = 0
    while todo:
        for name in sorted(_imported(todo.pop().read_bytes()) - seen):
            seen.add(name)
            files = _beside(name, path)
            size += sum(file.stat().st_size for file in files)
            if size > MAX_BYTES:
                raise ConfigError(
                    f"{path} imports {name}, which stands beside it, and with it the modules beside this file have"
                    f" {size / 2**20:.0f} MiB. A run copies up to {MAX_BYTES / 2**20:.0f} MiB. Move the data out of"
                    f" {path.parent / name}, or install it as a package.",
                    code="user_code",
                )
            found |= {str(file.relative_to(path.parent)): file.read_bytes() for file in files}
            todo += [file for file in files if file.suffix == ".py"]
    return found


def digests(beside: Mapping[str, bytes]) -> dict[str, str]:
    """Return the name of each module or package among neighbours -> digest of its files."""
    of_module = {name: hashlib.blake2b(digest_size=8) for name in sorted(map(_module_name, beside))}
    for file, content in sorted(beside.items()):
        of_module[_module_name(file)].update(f"{file}\0{len(content)}\0".encode() + content)
    return {name: digest.hexdigest() for name, digest in of_module.items()}


def use(path: Path, beside: Mapping[str, bytes]) -> None:
    """Let imports of a file's neighbours find them in its directory from now on, whatever else has their names.

    A module that is loaded already is loaded again, unless it is the same one: from this directory, or from another
    copy, with the same content. So classes that two files of a run share are the same.

    Args:
        path: The file, which is about to be executed.
        beside: Its neighbours.
    """
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    own = digests(beside)
    if any(_is_another(name, digest, path) for name, digest in own.items()):
        for loaded in [name for name in sys.modules if name.partition(".")[0] in own]:
            del sys.modules[loaded]
    _FINDER.files |= {name: (path, digest) for name, digest in own.items()}


class _Finder:
    """Finds modules beside users' files.

    It is the first finder: a worker of Ray has the directory of the command on its path, which may hold the originals.

    Attributes:
        files: Name of a module -> the last user's file that has it as a neighbour, and the digest of the module.
    """

    def __init__(self) -> None:
        self.files: dict[str, tuple[Path, str]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> machinery.ModuleSpec | None:
        """Return the spec of a neighbour; None for any other module."""
        return _spec(name, self.files[name][0].parent) if name in self.files else None


_FINDER = _Finder()


def _is_another(name: str, digest: str, path: Path) -> bool:
    """Return True if a module is loaded and is not the neighbour of `path` that has its name."""
    if name not in sys.modules:
        return False
    if name not in _FINDER.files:
        return path.parent not in Path(getattr(sys.modules[name], "__file__", None) or "/").parents
    before, digest_before = _FINDER.files[name]
    return digest != digest_before or (before.parent != path.parent and not _is_copy(before))


def _is_copy(path: Path) -> bool:
    """Return True for a run's copy of a file that has neighbours: all that stands beside it is one."""
    return path.parent.name == path.stem and COPY.fullmatch(path.name) is not None


def _module_name(file: str) -> str:
    return Path(file).parts[0].partition(".")[0]


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


def _spec(name: str, directory: Path) -> machinery.ModuleSpec | None:
    """Return the spec of a module or package in a directory, whose files may just have been written."""
    finder = machinery.FileFinder(
        str(directory),
        (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES),
        (machinery.SourceFileLoader, machinery.SOURCE_SUFFIXES),
    )
    return finder.find_spec(name)


def _beside(name: str, path: Path) -> list[Path]:
    """Return the files of a module or package beside a user's file; none if one of this name is installed."""
    spec = _spec(name, path.parent)
    if spec is None or not (_is_copy(path) or not _is_installed(name, path.parent, spec)):
        return []
    if spec.submodule_search_locations is None:
        return [path.parent / Path(str(spec.origin)).name]
    package = path.parent / name
    return sorted(
        file
        for file in package.rglob("*")
        if file.is_file()
        and not any(part == "__pycache__" or part.startswith(".") for part in file.relative_to(package).parts)
    )


def _is_installed(name: str, directory: Path, beside: machinery.ModuleSpec) -> bool:
    """Return True if Python has a module of this name without the current directory and that of the user's file.

    A directory without `__init__.py` somewhere on the path counts only if what stands beside the file is one, too:
    Python prefers any module to it.
    """
    ignored = (str(directory.absolute()), os.getcwd())
    places = [place for place in sys.path if os.path.abspath(place) not in ignored]
    for finder in sys.meta_path:
        if finder is _FINDER:
            continue
        # Besides Python's own finders there are those of editable installs.
        spec = finder.find_spec(name, places if finder is machinery.PathFinder else None)
        if spec is not None and (spec.loader is not None or beside.loader is None):
            return True
    return False
