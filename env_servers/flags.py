"""The parser of a command line, and types of flags.

argparse refuses an impossible value with the flag's name and the possible range.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openrlhf_tir.protocol import MAX_DEADLINE_S

MAX_PORT = 65535
"""The largest port. A larger number would be taken modulo 65,536."""


def command_parser(module: str, description: str | None, epilog: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of a module that `python -m` starts. It shows docstring and examples as they are written."""
    return argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def whole(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    """Return an argparse type for whole numbers from `minimum` to `maximum`, both included."""
    allowed = f"{minimum} or more" if maximum is None else f"{minimum} to {maximum}"

    def number(text: str) -> int:
        value = int(text)  # argparse turns a ValueError into a usage error
        if value < minimum or (maximum is not None and value > maximum):
            raise argparse.ArgumentTypeError(f"{text} is not possible. Use {allowed}.")
        return value

    number.__name__ = "whole number"  # argparse quotes the name in its error
    return number


def seconds(text: str) -> float:
    """An argparse type for a duration of more than 0 seconds."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} leaves no time. Use more than 0 seconds.")
    if value == math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds. Use a finite one.")
    return value


def call_seconds(text: str) -> float:
    """An argparse type for the duration of one call: more than 0 seconds, and at most what a request may ask for."""
    value = seconds(text)
    if value > MAX_DEADLINE_S:
        raise argparse.ArgumentTypeError(f"{text} exceeds the longest call. Use up to {MAX_DEADLINE_S} seconds.")
    return value


def json_object(text: str) -> dict[str, Any]:
    """An argparse type for a JSON object.

    Raises:
        ValueError: It is no JSON object; argparse turns it into a usage error.
    """
    value = json.loads(text)  # argparse turns a ValueError into a usage error
    if not isinstance(value, dict):
        raise ValueError(text)
    return value


def shell_words(text: str) -> list[str]:
    """An argparse type for words as a shell splits them."""
    try:
        return shlex.split(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"{text} cannot be split into words: {e}. Close the quotation.") from None


def file_to_read(text: str) -> Path:
    """An argparse type for a file that exists."""
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"{text} cannot be read: there is no such file. Correct the path.")
    return path


def directory_to_read(text: str) -> Path:
    """An argparse type for a directory that exists."""
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} cannot be read: there is no such directory. Correct the path.")
    return path


def file_to_write(text: str) -> Path:
    """An argparse type for a file that can be written, checked before rows are made, which may take long."""
    path = Path(text)
    if not path.parent.is_dir() or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} cannot be written: {_obstacle(path)}.")
    return path


def _obstacle(path: Path) -> str:
    """Return why a file cannot be written, and the remedy."""
    if path.is_dir():
        return "it is a directory. Name a file in it"
    return f"there is no directory {path.parent}. Make it"
