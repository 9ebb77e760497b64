"""Files of a request: base64 by path below the working directory, in and out.

Files that a sandbox could not write are refused before it tries.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

MAX_FILES = 1024
MAX_ENTRIES = 4096
"""Files and the directories that they need. It is a quarter of what a sandbox's /tmp has room for."""
INSIDE = ("/tmp/", "/mnt/")
"""Absolute names of the working directory. Requested files may be named by them, as in SandboxFusion."""
NAME_BYTES = 255
"""Longest name of a file that Linux accepts, in bytes."""
PATH_BYTES = 1024
"""Longest path that is accepted, in bytes. Linux allows more, but the working directory stands in front."""


def _parts(path: str) -> tuple[str, ...]:
    """Return the names that lead to a file. Raises ValueError if the path does not lead below the working directory."""
    names = path.split("/")
    if not path or path.startswith("/") or "\0" in path or ".." in names or names[-1] in ("", "."):
        raise ValueError(f"{path[:80]!r} is not a path below the working directory")
    if len(path.encode()) > PATH_BYTES or any(len(name.encode()) > NAME_BYTES for name in names):
        raise ValueError(f"{path[:80]!r}... is too long: a name has at most {NAME_BYTES} bytes, a path {PATH_BYTES}")
    return tuple(name for name in names if name not in ("", "."))


def _check_files(files: dict[str, str | None]) -> dict[str, str | None]:
    """Return the files. Raises ValueError if they cannot all be written below one directory."""
    directories: set[tuple[str, ...]] = set()
    paths: dict[tuple[str, ...], str] = {}
    for path, content in files.items():
        parts = _parts(path)
        if parts in paths:
            raise ValueError(f"{path[:80]!r} and {paths[parts][:80]!r} are one file")
        paths[parts] = path
        directories |= {parts[:i] for i in range(1, len(parts))}
        try:
            # White space is allowed, and `decoded` skips it: many encoders break lines.
            base64.b64decode(b"".join((content or "").encode("ascii").split()), validate=True)
        except (binascii.Error, UnicodeEncodeError) as e:
            raise ValueError(f"{path[:80]!r} is not base64: {e}") from None
    if both := paths.keys() & directories:
        raise ValueError(f"{paths[min(both)][:80]!r} is a file and a directory of another one")
    if len(paths) + len(directories) > MAX_ENTRIES:
        raise ValueError(f"{len(paths)} files need {len(directories)} directories; both together may be {MAX_ENTRIES}")
    return files


def _check_paths(paths: list[str]) -> list[str]:
    """Return the paths. Raises ValueError if one leads out of the working directory."""
    for path in paths:
        prefix = next((prefix for prefix in INSIDE if path.startswith(prefix)), "")
        _parts(path.removeprefix(prefix))
    return paths


Files = Annotated[dict[str, str | None], Field(max_length=MAX_FILES), AfterValidator(_check_files)]
FetchFiles = Annotated[list[str], Field(max_length=MAX_FILES), AfterValidator(_check_paths)]


def decoded(files: Mapping[str, str | None]) -> dict[str, bytes]:
    """Return the content of the files that have one, decoded."""
    return {path: base64.b64decode(content) for path, content in files.items() if content is not None}


def encoded(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return the files as base64."""
    return {path: base64.b64encode(content).decode() for path, content in files.items()}
