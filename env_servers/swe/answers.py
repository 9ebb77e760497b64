"""Find where this machine holds the solutions of tasks, however the package was installed.

A session reads /usr, the interpreter's own directory and the installed packages. The package may lie there several
times (pip's copy beside the checkout that the server runs from, a build directory, a second environment), and each copy
has the correct repositories and their hidden tests. All of them are hidden, not only the one that the server imported.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator, Sequence

from env_servers.python_tir.isolation.bwrap import site_packages

PACKAGE = "env_servers"
"""Name of this package's directory."""
CHECKOUT = "pyproject.toml"
"""File that marks the directory around the package as a checkout."""


def visible_roots() -> tuple[str, ...]:
    """Return the directories of the host that a sandbox shows."""
    roots = [os.path.realpath(root) for root in ("/usr", sys.base_prefix, *site_packages())]
    return tuple(dict.fromkeys(roots))


@functools.cache
def answer_directories(roots: Sequence[str]) -> tuple[str, ...]:
    """Return every directory below `roots` that holds a copy of this package's tasks.

    That is the package's directory, and the checkout around it if there is one: a checkout has tests that name the
    bugs, and may have generated rows with their labels.
    """
    return tuple(dict.fromkeys(copy for root in roots for copy in _copies(root, roots)))


def _copies(top: str, roots: Sequence[str]) -> Iterator[str]:
    """Yield the copies below `top`. Links are not followed, since their targets are visible or not by themselves."""
    waiting = [top]
    while waiting:
        directory = waiting.pop()
        below = _directories(directory)
        package = f"{directory}/{PACKAGE}"
        if package in below and os.path.isdir(f"{package}/swe"):
            if os.path.isfile(f"{directory}/{CHECKOUT}"):
                yield from _without(directory, roots)
                continue
            yield package
            below.remove(package)
        waiting += below


def _without(directory: str, roots: Sequence[str]) -> Iterator[str]:
    """Yield `directory`, or its contents without an environment that sessions need (a checkout's own `.venv`)."""
    if directory in roots or not any(root.startswith(f"{directory}/") for root in roots):
        yield directory if directory not in roots else f"{directory}/{PACKAGE}"
        return
    for below in _directories(directory):
        if below not in roots:
            yield from _without(below, roots)


def _directories(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
