"""Check that no file in the current directory takes the place of a module of Python's own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ...config.problems import Problems


def check_shadowed(problems: Problems, directory: Path) -> None:
    """Add a mistake for each file of a directory that is named like a module of Python's which a run needs.

    `openrlhf-tir` itself does not search the current directory, but `python -c` and `python -m` do, by which worker
    processes and environment servers start. They would load a user's `random.py` as Python's own and end in a
    traceback that names neither the file nor the reason.

    Args:
        problems: Gets the mistakes.
        directory: The directory in which the run is started.
    """
    if os.environ.get("PYTHONSAFEPATH"):  # Python then searches the current directory for nobody.
        return
    lines = (
        f"{path} has the name of Python's own module {name}, and a process of the run could load it in its place."
        " Rename it, or start from another directory."
        for name, path in _shadowing(directory)
    )
    problems.add(lines, code="path")


def _shadowing(directory: Path) -> Iterator[tuple[str, Path]]:
    """Yield (module, path) of the files and packages that are named like a loaded module of the standard library."""
    found = []
    for name in sorted(sys.stdlib_module_names.intersection(sys.modules)):
        origin = getattr(sys.modules[name].__spec__, "origin", None)
        for path in (directory / f"{name}.py", directory / name / "__init__.py"):
            if path.is_file() and not _is_origin(path, origin):
                found.append((name, path))
    at_start = _loaded_at_start() if found else frozenset()
    yield from ((name, path) for name, path in found if name not in at_start)


def _loaded_at_start() -> frozenset[str]:
    """Return the modules that Python loads before it searches the current directory, and those built into it."""
    printed = subprocess.run(
        [sys.executable, "-P", "-c", "import sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return frozenset(printed.stdout.split()).union(sys.builtin_module_names)


def _is_origin(path: Path, origin: str | None) -> bool:
    """Return True if a path is the module's own file: the run is started in Python's own library."""
    return origin is not None and os.path.exists(origin) and path.samefile(origin)
