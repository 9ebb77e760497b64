"""The directory of the host in which a call runs whose sandbox has no file system of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def call_directory() -> AsyncIterator[str]:
    """Hold an empty directory for one call.

    It is removed in a thread: a snippet may have left a hundred thousand files in it.
    """
    directory = tempfile.TemporaryDirectory(prefix="tir-", ignore_cleanup_errors=True)
    try:
        yield directory.name
    finally:
        await asyncio.to_thread(_remove, directory)


def _remove(directory: tempfile.TemporaryDirectory) -> None:
    """Remove a directory, whatever a snippet has left in it."""
    with suppress(RecursionError):
        directory.cleanup()
    if os.path.exists(directory.name):  # directories in one another, more than Python can follow; rm(1) can
        subprocess.run(["/bin/rm", "-rf", "--", directory.name], check=False, capture_output=True)
