"""Paths that users write: text becomes a Path, and what pathlib cannot handle becomes a ConfigError of one line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ..errors import ConfigError

T = TypeVar("T")
ROW_FILES = (".jsonl", ".json", ".parquet")
"""Suffixes of the files that rows are read from."""


def can_only_be_path(name: str) -> bool:
    """Return True if the name of a model or of a data set is none that the hub can have: NAME or OWNER/NAME."""
    return name.startswith(("/", ".", "~")) or name.count("/") > 1


def local_path(text: str | Path, what: str) -> Path:
    """Return the path that `text` means, with ~ expanded.

    Args:
        text: What the user wrote.
        what: Its name for messages: "data.prompt_dataset".

    Raises:
        ConfigError: No path can have this text.
    """
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


def query_path(path: Path, question: Callable[[Path], T], what: str) -> T:
    """Return `question(path)`, for example with Path.is_file.

    Raises:
        ConfigError: The file system refuses: the name is too long, there is no permission or no current directory.
    """
    try:
        return question(path)
    except OSError as e:
        raise ConfigError(
            f"{what}: {shorten(str(path))!r} cannot be read: {e.strerror or e}. Correct the path or its permissions.",
            code="path",
        ) from None


def check_new_file(path: Path | None, flag: str) -> None:
    """Check before a command's work that it can write the file of its result. Raises ConfigError if it cannot."""
    if path is None:
        return
    if query_path(path, Path.is_dir, flag):
        raise ConfigError(f"{flag} {path} is a directory. Give the path of a file.", code="path")
    if query_path(path, Path.exists, flag) and not path.is_file():
        raise ConfigError(f"{flag} {path} is a pipe or a device. Give the path of a file.", code="path")
    if not query_path(path.parent, Path.is_dir, flag) or not os.access(path.parent, os.W_OK):
        raise ConfigError(
            f"{flag} {path} cannot be written: there is no directory {path.parent} that takes new files."
            " Make it, or choose another.",
            code="path",
        )


def shorten(text: str, most: int = 300) -> str:
    """Return `text` without its middle if it has more than `most` characters, so that a message stays readable."""
    half = (most - 20) // 2
    return text if len(text) <= most else f"{text[:half]} [... {len(text) - 2 * half} more ...] {text[-half:]}"


def shown(value: object, most: int = 200) -> str:
    """Return repr(value) for a message: it never raises and is never longer than `most`.

    Python itself refuses to print an integer of more than 4,300 digits.
    """
    try:
        return shorten(repr(value), most)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} too large to print"
