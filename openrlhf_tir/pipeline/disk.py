"""Disk: how much a checkpoint needs and how much is free, for the message when one does not fit."""

from __future__ import annotations

import shutil
from pathlib import Path

MIB = 1 << 20


def size_of(directory: Path) -> int:
    """Bytes of all files below; one that vanishes meanwhile counts 0."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


def shortage(directory: Path) -> str:
    """What the checkpoints in `directory` take each and what is free there, as a sentence without its full stop."""
    sizes = [size_of(d) for d in directory.glob("step_*") if d.is_dir()]
    partial = sum(size_of(d) for d in directory.glob(".step_*") if d.is_dir())
    free = shutil.disk_usage(directory if directory.exists() else directory.parent).free
    needed = f"{max(sizes) / MIB:,.1f} MiB are needed (the largest one before)" if sizes else f"more than {partial / MIB:,.1f} MiB are needed"
    return f"{needed}, {partial / MIB:,.1f} MiB were written, {free / MIB:,.1f} MiB are free beside them in {directory}"
