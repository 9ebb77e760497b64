"""Read and write TOML files of users. Whatever the bytes, an error names file, place and remedy."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomlkit

from ..errors import ConfigError
from .paths import shorten

MAX_BYTES = 1 << 20
"""Recipes, workloads and control files are pages of text: a larger file is not one of them."""
UNSET = "unset"
"""What stands for None, since TOML has no null."""


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Return the table of a TOML file in UTF-8, with or without a byte order mark.

    Args:
        path: The file.
        what: Its role, to begin a message with: "Recipe".

    Raises:
        ConfigError: It cannot be read, or is not TOML.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(
                f"{what} {path} has {path.stat().st_size} bytes; it is meant to be a short TOML file."
                " Give the path of one.",
                code="recipe",
            )
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as e:
        raise ConfigError(
            f"{what} {path} is not valid TOML: {e.reason} 0x{e.object[e.start]:02x} at byte {e.start}."
            " Save it as UTF-8.",
            code="recipe",
        ) from None
    except OSError as e:
        raise ConfigError(
            f"{what} {path} cannot be read: {e.strerror or e}. Correct the path or its permissions.", code="recipe"
        ) from None
    except RecursionError:
        raise ConfigError(
            f"{what} {path} is not valid TOML: it is nested too deeply. Correct it.", code="recipe"
        ) from None
    except ValueError as e:
        # TOMLDecodeError, or Python's own: an integer of more than 4,300 digits, a date that is none
        raise ConfigError(
            f"{what} {path} is not valid TOML: {shorten(str(e))}. Correct that line.", code="recipe"
        ) from None


def dump(table: Mapping[str, Any]) -> str:
    """Return a table as TOML. None is written as UNSET."""
    return tomlkit.dumps(_plain(table))


def literal(value: Any) -> str:
    """Return a value as TOML writes it, on one line."""
    if isinstance(value, Mapping):
        inline = tomlkit.inline_table()
        inline.update(_plain(value))
        return inline.as_string()
    return tomlkit.item(_plain(value)).as_string()


def _plain(value: Any) -> Any:
    """Return a value with the types that TOML has: tables, arrays, text, numbers and booleans."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if value is None:
        return UNSET
    return value if isinstance(value, bool | int | float) else str(value)
