"""Compile the programs of a sandbox, encode a call for the runner, and decode the files that it returns. The runner's
half is in `runner.py`.

pack(snippet)      -> bytes that follow the runner in its stdin, with marshal: the server is trusted
unpack(fd, fetch)  <- a memory file to which the snippet could write, so it is lengths and bytes, which are checked
"""

from __future__ import annotations

import marshal
import os
from collections.abc import Sequence
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from ..sandbox import FETCH_BYTES, Snippet


class Fetched(NamedTuple):
    """Files that a call returns.

    Attributes:
        files: Contents by path.
        left_out: Sizes in bytes of the files that did not fit, by path.
    """

    files: dict[str, bytes]
    left_out: dict[str, int]


def compiled(path: Path) -> CodeType:
    """Return a program that runs inside a sandbox, compiled: the server never imports it."""
    return compile(path.read_text(), f"<{path.stem}>", "exec", dont_inherit=True, optimize=2)


def pack(snippet: Snippet, fetch_fd: int = -1) -> bytes:
    """Return the bytes of a call. `fetch_fd` is the memory file to which the runner writes the fetched files."""
    return marshal.dumps((*snippet.parts, fetch_fd))


def unpack(fd: int, fetch: Sequence[str]) -> Fetched:
    """Read the files that a call returns. If the data breaks off, because the runner was killed, the remaining files
    are left out."""
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
