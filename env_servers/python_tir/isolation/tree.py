"""Tree: the processes below one process, read from /proc. Orphans of a sandbox stay in it: its PID 1 inherits them."""

from __future__ import annotations

import os
from collections.abc import Iterator


def _children(pid: int, tid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{tid}/children") as f:
            return [int(child) for child in f.read().split()]
    except OSError:
        return []


def tasks(pid: int) -> int:
    """The threads of all processes below `pid`, which is what RLIMIT_NPROC counts."""
    total = 0
    for child in descendants(pid):
        try:
            total += len(os.listdir(f"/proc/{child}/task"))
        except OSError:
            continue
    return total


def descendants(pid: int) -> Iterator[int]:
    todo = [pid]
    while todo:
        parent = todo.pop()
        try:
            threads = os.listdir(f"/proc/{parent}/task")
        except OSError:
            continue
        for tid in threads:
            found = _children(parent, int(tid))
            todo += found
            yield from found
