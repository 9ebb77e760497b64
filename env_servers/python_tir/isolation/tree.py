"""Find the processes below a process in /proc. Orphans of a sandbox are among them: its PID 1 inherits them."""

from __future__ import annotations

import os
from collections.abc import Iterator


def _children(pid: int, tid: int) -> list[int]:
    """Return the children of one thread; none if it has ended."""
    try:
        with open(f"/proc/{pid}/task/{tid}/children") as f:
            return [int(child) for child in f.read().split()]
    except OSError:
        return []


def tasks(pid: int) -> int:
    """Return the number of threads of all processes below `pid`, which is what RLIMIT_NPROC counts."""
    total = 0
    for child in descendants(pid):
        try:
            total += len(os.listdir(f"/proc/{child}/task"))
        except OSError:
            continue
    return total


def descendants(pid: int) -> Iterator[int]:
    """Yield the process ids of everything below `pid`."""
    parents = [pid]
    while parents:
        parent = parents.pop()
        try:
            threads = os.listdir(f"/proc/{parent}/task")
        except OSError:
            continue
        for tid in threads:
            children = _children(parent, int(tid))
            parents += children
            yield from children
