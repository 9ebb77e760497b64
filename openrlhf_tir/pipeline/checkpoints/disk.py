"""Faults of the disk while a run prepares to resume. They may pass, so they are raised as Unavailable.

(A disk that refuses a later checkpoint costs that checkpoint only, see saver.py.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import Unavailable


@contextmanager
def faults_as_unavailable(directory: Path) -> Iterator[None]:
    """Raise faults of the disk as Unavailable. Context manager and decorator for work on the checkpoint directory.

    Raises:
        Unavailable: The disk refused. The checkpoint is as it was, because files are only replaced as a whole.
    """
    try:
        yield
    except OSError as e:
        raise Unavailable(
            f"{directory} could not be made ready for a resume ({e}). No checkpoint is lost: free space there or"
            " correct its permissions, and resume again."
        ) from e
