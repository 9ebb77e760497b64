"""Job: one call as bytes that the runner reads, and the files it hands back. The runner's half is in `runner.py`.

pack(snippet) ->                  bytes behind the runner in its stdin          trusted: marshal
unpack(fd, fetch)               <- a memory file that the snippet could write to  not trusted: lengths and bytes,
                                checked
"""

from __future__ import annotations

import marshal
import os
from collections.abc import Sequence
from typing import NamedTuple

from ..sandbox import FETCH_BYTES, Snippet


class Fetched(NamedTuple):
    """What a call hands back: contents of files, and the sizes of those that had no room."""

    files: dict[str, bytes]
    left_out: dict[str, int]


def pack(snippet: Snippet, fetch_fd: int = -1) -> bytes:
    return marshal.dumps((*snippet.parts, fetch_fd))


def unpack(fd: int, fetch: Sequence[str]) -> Fetched:
    """Read the files that existed, and which of them had no room. A broken end (a runner killed as it wrote) leaves out
    the rest."""
    files: dict[str, bytes] = {}
    left_out: dict[str, int] = {}
    at = 0
    room = FETCH_BYTES
    for name in fetch:
        head = os.pread(fd, 8, at)
        if len(head) < 8:
            break
        size = int.from_bytes(head, "little", signed=True)
        at += 8
        if size < -1:
            left_out[name] = -size - 2
        elif size > room:
            break
        elif size >= 0:
            content = os.pread(fd, size, at)
            if len(content) < size:
                break
            files[name] = content
            at += size
            room -= size
    return Fetched(files, left_out)
