"""Answers: where this machine holds the solutions of tasks, in whatever way the package was installed.

A session reads /usr, the interpreter's own directory and the installed packages. The package may lie there several
times (pip's copy beside the checkout that the server runs from, a build directory, a second environment), and each copy
has the mended repositories and their hidden tests. All of them are masked, not only the one that the server imported.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator, Sequence

from env_servers.python_tir.isolation.bwrap import site_packages

PACKAGE = "env_servers"
CHECKOUT = "pyproject.toml"


def visible_roots() -> tuple[str, ...]:
    """Return the directories of the host that a sandbox shows."""
    roots = [os.path.realpath(root) for root in ("/usr", sys.base_prefix, *site_packages())]
    return tuple(dict.fromkeys(roots))


@functools.cache
def answer_directories(roots: Sequence[str]) -> tuple[str, ...]:
    """Return every directory below `roots` that holds a copy of this package's tasks.

    That is the package's directory, and the checkout around it where it is one: a checkout has tests that name the
    bugs, and may have made rows with their labels.
    """
    return tuple(dict.fromkeys(found for root in roots for found in _copies(root, roots)))


def _copies(top: str, roots: Sequence[str]) -> Iterator[str]:
    """Yield the copies below `top`; links are not followed, since what they lead to is visible or not by itself."""
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
    """Yield `directory`, or what is in it besides an environment that sessions need (a checkout's own `.venv`)."""
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
