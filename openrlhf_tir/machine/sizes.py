"""Numbers of bytes for people, and free space on disks."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path


def size(n: float) -> str:
    """Return a number of bytes as text, such as "3.2 MiB" or, from 128 MiB on, "1.50 GiB"."""
    return f"{n / 2**30:.2f} GiB" if n >= 2**27 else f"{n / 2**20:.1f} MiB"


def free_bytes(directory: Path) -> int:
    """Return the free bytes of the disk that holds `directory`."""
    return shutil.disk_usage(directory).free


def free_above(path: Path) -> int:
    """Return the free bytes of the disk on which `path`, which need not exist, would be made; 0 if nobody knows."""
    existing = next((p for p in (path, *path.absolute().parents) if p.is_dir()), None)
    return free_bytes(existing) if existing else 0


def room(directory: Path, free: Callable[[Path], int] = free_bytes) -> str:
    """Return the free space of the disk that holds `directory` as a clause, or why it cannot be read."""
    try:
        return f"{size(free(directory))} are free now"
    except OSError as e:
        return f"how much is free cannot be read ({e.strerror})"
