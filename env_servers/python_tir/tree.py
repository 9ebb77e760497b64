"""Tree: the processes below one process, read from /proc. Orphans of a sandbox stay in it: its PID 1 inherits them."""

from __future__ import annotations

import os
from collections.abc import Iterator

_PAGE = os.sysconf("SC_PAGE_SIZE")


def _children(pid: int, tid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{tid}/children") as f:
            return [int(child) for child in f.read().split()]
    except OSError:
        return []


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


def resident_bytes(pid: int) -> int:
    """Resident, not shared with files, memory of everything below `pid`; pages shared by a fork count once for each process."""
    total = 0
    for child in descendants(pid):
        try:
            with open(f"/proc/{child}/statm") as f:
                _, resident, shared, *_ = map(int, f.read().split())
        except OSError:
            continue
        total += (resident - shared) * _PAGE
    return total
