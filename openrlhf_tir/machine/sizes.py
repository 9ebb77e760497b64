"""Sizes: bytes for a person, what a disk has left. What a model takes is in model_size.py."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path


def size(n: float) -> str:
    """ "1.50 GiB", "3.2 MiB": the number of bytes `n`, in GiB from 128 MiB on."""
    return f"{n / 2**30:.2f} GiB" if n >= 2**27 else f"{n / 2**20:.1f} MiB"


def free_bytes(directory: Path) -> int:
    """What the disk of `directory` has left."""
    return shutil.disk_usage(directory).free


def room(directory: Path, free: Callable[[Path], int] = free_bytes) -> str:
    """What the disk of `directory` has left, in words: of one that is gone, that cannot be read either."""
    try:
        return f"{size(free(directory))} are free now"
    except OSError as e:
        return f"how much is free cannot be read ({e.strerror})"
