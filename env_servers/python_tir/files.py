"""Files of a request: path below the working directory -> base64, in and out. What a sandbox could not lay out is
refused before it tries."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

MAX_FILES = 1024
MAX_ENTRIES = 4096
"""Files and the directories that they need: a quarter of what a sandbox's /tmp has room for."""
INSIDE = ("/tmp/", "/mnt/")
"""Absolute names of the working directory, by which files that are handed back may be named, as in SandboxFusion."""
NAME_BYTES = 255
PATH_BYTES = 1024
"""Linux refuses a longer name; a path also has the working directory in front."""


def _parts(path: str) -> tuple[str, ...]:
    """The names that lead to the file. Raises ValueError where there is no such file below the working directory."""
    names = path.split("/")
    if not path or path.startswith("/") or "\0" in path or ".." in names or names[-1] in ("", "."):
        raise ValueError(f"{path[:80]!r} is not a path below the working directory")
    if len(path.encode()) > PATH_BYTES or any(len(name.encode()) > NAME_BYTES for name in names):
        raise ValueError(f"{path[:80]!r}... is too long: a name has at most {NAME_BYTES} bytes, a path {PATH_BYTES}")
    return tuple(name for name in names if name not in ("", "."))


def _can_be_laid_out(files: dict[str, str | None]) -> dict[str, str | None]:
    directories: set[tuple[str, ...]] = set()
    paths: dict[tuple[str, ...], str] = {}
    for path, content in files.items():
        parts = _parts(path)
        if parts in paths:
            raise ValueError(f"{path[:80]!r} and {paths[parts][:80]!r} are one file")
        paths[parts] = path
        directories |= {parts[:i] for i in range(1, len(parts))}
        try:
            base64.b64decode(content or "", validate=True)
        except (binascii.Error, ValueError) as e:  # ValueError: characters beyond ASCII
            raise ValueError(f"{path[:80]!r} is not base64: {e}") from None
    if both := paths.keys() & directories:
        raise ValueError(f"{paths[min(both)][:80]!r} is a file and a directory of another one")
    if len(paths) + len(directories) > MAX_ENTRIES:
        raise ValueError(f"{len(paths)} files need {len(directories)} directories; both together may be {MAX_ENTRIES}")
    return files


def _are_inside(paths: list[str]) -> list[str]:
    for path in paths:
        _parts(path.removeprefix(next((start for start in INSIDE if path.startswith(start)), "")))
    return paths


Files = Annotated[dict[str, str | None], Field(max_length=MAX_FILES), AfterValidator(_can_be_laid_out)]
FetchFiles = Annotated[list[str], Field(max_length=MAX_FILES), AfterValidator(_are_inside)]


def decoded(files: Mapping[str, str | None]) -> dict[str, bytes]:
    """Returns the files that have a content, decoded."""
    return {path: base64.b64decode(content) for path, content in files.items() if content is not None}


def encoded(files: Mapping[str, bytes]) -> dict[str, str]:
    return {path: base64.b64encode(content).decode() for path, content in files.items()}
