"""Files that others read while they are written."""

from __future__ import annotations

import os
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Replace a file as a whole, so that a reader finds the old or the new content.

    The disk may still lose it with the power: checkpoints have a function of their own that waits for the disk.

    Raises:
        OSError: The disk refuses the file. The old content is still there.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
