"""Paths that users write: text -> Path, or ConfigError. What `pathlib` answers with RuntimeError, ValueError or OSError
is said in one line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ..errors import ConfigError

T = TypeVar("T")


def local_path(text: str | Path, what: str) -> Path:
    """The path that `text` means, with ~ expanded. `what` names it in the message: "data.prompt_dataset"."""
    if "\0" in str(text):
        raise ConfigError(f"{what} = {str(text)!r} holds a NUL byte, which no path can. Remove it.", code="path")
    try:
        str(text).encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"{what} = {str(text)!r} is not valid Unicode. Rename it to text that UTF-8 can hold.", code="path"
        ) from None
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ConfigError(
            f"{what} = {str(text)!r} starts with ~, and there is no such home directory (HOME is unset)."
            " Write the whole path.",
            code="path",
        ) from None


def asked(path: Path, question: Callable[[Path], T], what: str) -> T:
    """`question(path)`, e.g. Path.is_file, with the file system's refusal (name too long, no permission, no current
    directory) as a ConfigError."""
    try:
        return question(path)
    except OSError as e:
        raise ConfigError(
            f"{what}: {shorten(str(path))!r} cannot be read: {e.strerror or e}. Correct the path or its permissions.",
            code="path",
        ) from None


def check_new_file(path: Path | None, flag: str) -> None:
    """A file that a command writes at its end can be written. Raises ConfigError before the work that it crowns."""
    if path is None:
        return
    if asked(path, Path.is_dir, flag):
        raise ConfigError(f"{flag} {path} is a directory. Give the path of a file.", code="path")
    if asked(path, Path.exists, flag) and not path.is_file():
        raise ConfigError(f"{flag} {path} is a pipe or a device. Give the path of a file.", code="path")
    if not asked(path.parent, Path.is_dir, flag) or not os.access(path.parent, os.W_OK):
        raise ConfigError(
            f"{flag} {path} cannot be written: there is no directory {path.parent} that takes new files."
            " Make it, or choose another.",
            code="path",
        )


def shorten(text: str, most: int = 300) -> str:
    """`text` with its middle left out beyond `most` characters: a message stays readable whatever was given."""
    half = (most - 20) // 2
    return text if len(text) <= most else f"{text[:half]} [... {len(text) - 2 * half} more ...] {text[-half:]}"


def shown(value: object, most: int = 200) -> str:
    """repr(value) for a message: never raises, never longer than `most`. Python prints no integer of 4,301 digits."""
    try:
        return shorten(repr(value), most)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} too large to print"
