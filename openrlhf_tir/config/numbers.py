"""Numbers in text. For argparse's `type`: text -> int or float within bounds; argparse turns the error into one line
with the flag. For a field: bytes."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable


def whole(*, at_least: int, at_most: int = 10**9) -> Callable[[str], int]:
    """An integer within the bounds."""

    def of(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"{text[:60]!r} is no whole number; give {at_least} to {at_most}"
            ) from None
        if not at_least <= value <= at_most:
            raise argparse.ArgumentTypeError(f"{text[:60]} is out of range; give {at_least} to {at_most}")
        return value

    return of


def real(*, above: float = 0.0, zero: bool = False) -> Callable[[str], float]:
    """A finite number above `above`; `zero` allows the bound itself."""

    def of(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text[:60]!r} is no number") from None
        if not math.isfinite(value) or value < above or (value == above and not zero):
            bound = f" {'of at least' if zero else 'above'} {above:g}" if math.isfinite(above) else ""
            raise argparse.ArgumentTypeError(f"{text[:60]} is out of range; give a finite number{bound}")
        return value

    return of


def share(text: str) -> float:
    """A number from 0 to 1."""
    value = real(above=-math.inf)(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text[:60]} is out of range; give a share, 0 to 1")
    return value


UNITS = {
    "B": 1,
    **{f"{letter}{i}B": (1024 if i else 1000) ** power for power, letter in enumerate("KMGT", 1) for i in ("", "i")},
}


def bytes_of(text: str) -> int:
    """ "5GB" -> 5 * 10^9, "512 MiB" -> 512 * 2^20. Raises ValueError."""
    found = re.fullmatch(r"\s*(\d{1,12}(?:\.\d{1,6})?)\s*([KMGT]?i?B)\s*", text, re.IGNORECASE)
    unit = {name.upper(): factor for name, factor in UNITS.items()}.get(found[2].upper()) if found else None
    if not found or unit is None or not (n := int(float(found[1]) * unit)):
        raise ValueError(f"{text[:60]!r} is no size. Write a number and a unit ({', '.join(UNITS)}), e.g. 5GB")
    return n
