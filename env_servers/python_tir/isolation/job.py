"""Job: one call as bytes that the runner reads, and the files it hands back. The runner's half is in `runner.py`.

pack(snippet) ->                  bytes behind the runner in its stdin          trusted: marshal
unpack(fd, fetch)               <- a memory file that the snippet could write to  not trusted: lengths and bytes,
                                checked
"""

from __future__ import annotations

import marshal
import os
from collections.abc import Sequence

from ..sandbox import Snippet

FETCH_BYTES = 16 << 20
"""Bytes of all files that are handed back together; what comes after is left out."""


def pack(snippet: Snippet, fetch_fd: int = -1) -> bytes:
    return marshal.dumps((*snippet.parts, fetch_fd))


def unpack(fd: int, fetch: Sequence[str]) -> dict[str, bytes]:
    """Path -> content of the files that existed. A broken end (a runner killed as it wrote) leaves out the rest."""
    data = os.pread(fd, FETCH_BYTES, 0)
    files, at = {}, 0
    for name in fetch:
        if at + 8 > len(data):
            break
        size = int.from_bytes(data[at : at + 8], "little", signed=True)
        at += 8
        if size < 0:
            continue
        if at + size > len(data):
            break
        files[name] = data[at : at + size]
        at += size
    return files
