"""Disk: what it refuses while a run makes ready to resume, told as a fault that may pass. (What it refuses to a
checkpoint later costs that one alone.)"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import Unavailable


@contextmanager
def told(directory: Path) -> Iterator[None]:
    """Also a decorator. Raises Unavailable for an OSError: the checkpoint is as it was, files being replaced whole."""
    try:
        yield
    except OSError as e:
        raise Unavailable(
            f"{directory} could not be made ready for a resume ({e}). No checkpoint is lost: free space there or"
            " correct its permissions, and resume again."
        ) from e
