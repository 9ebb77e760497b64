"""Where the files are that the learner writes for the engines."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
SPARE = "spare"
"""Name of the file of an earlier push that the next full push overwrites."""


def push_directory(run_dir: Path, model_bytes: int | None, *, one_node: bool = True) -> Path:
    """Return the directory for the files of a run's pushes.

    It is in shared memory if that has space for two files, the old and the new one. Otherwise it is in the run's
    directory; also if the size is unknown, and if engines run on several nodes, which must all see the directory.

    Args:
        run_dir: The run's directory.
        model_bytes: Size of a full push in bytes; None if unknown.
        one_node: True if all engines run on the learner's node.
    """
    fits = (
        model_bytes is not None
        and one_node
        and SHARED_MEMORY.is_dir()
        and shutil.disk_usage(SHARED_MEMORY).free >= 2 * model_bytes
    )
    name = f"tir_weights_{run_dir.name}_{hashlib.sha256(str(run_dir).encode()).hexdigest()[:8]}"
    return (SHARED_MEMORY if fits else run_dir) / name
