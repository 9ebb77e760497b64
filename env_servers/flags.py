"""Types of command-line flags. A value that cannot work is refused by argparse, with the flag's name and what would."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

MOST_PORT = 65535
"""A larger one would be taken modulo 65,536."""


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A whole number within bounds, both included."""
    wanted = f"{least} or more" if most is None else f"{least} to {most}"

    def number(text: str) -> int:
        value = int(text)  # argparse makes a usage error of a ValueError
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"{text} is not possible. Use {wanted}.")
        return value

    number.__name__ = "whole number"
    return number


def seconds(text: str) -> float:
    """More than none."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} leaves no time. Use more than 0 seconds.")
    return value


def file_to_write(text: str) -> Path:
    """In a directory that is there: known before rows are made, which may take long."""
    path = Path(text)
    if not path.parent.is_dir() or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} cannot be written: {_why(path)}.")
    return path


def _why(path: Path) -> str:
    return "it is a directory. Name a file in it" if path.is_dir() else f"there is no directory {path.parent}. Make it"
