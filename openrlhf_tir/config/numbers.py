"""Read numbers from text: integers, finite numbers and shares for argparse's `type`.

argparse turns an ArgumentTypeError into one line that names the flag.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def whole(*, at_least: int, at_most: int = 10**9) -> Callable[[str], int]:
    """Return a function that reads an integer within the bounds."""

    def of(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"{text[:60]!r} is not a whole number; give {at_least} to {at_most}"
            ) from None
        if not at_least <= value <= at_most:
            raise argparse.ArgumentTypeError(f"{text[:60]} is out of range; give {at_least} to {at_most}")
        return value

    return of


def real(*, above: float = 0.0, zero: bool = False) -> Callable[[str], float]:
    """Return a function that reads a finite number above `above`; with `zero` also `above` itself."""

    def of(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text[:60]!r} is not a number") from None
        if not math.isfinite(value) or value < above or (value == above and not zero):
            bound = f" {'of at least' if zero else 'above'} {above:g}" if math.isfinite(above) else ""
            raise argparse.ArgumentTypeError(f"{text[:60]} is out of range; give a finite number{bound}")
        return value

    return of


def share(text: str) -> float:
    """Read a number from 0 to 1."""
    value = real(above=-math.inf)(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text[:60]} is out of range; give a share, 0 to 1")
    return value
