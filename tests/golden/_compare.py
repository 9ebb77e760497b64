"""Expected against got, as sentences. Floats agree within 1e-9; -0.0 is 0.0; a tuple is a list."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

TOLERANCE = 1e-9


def same(got: Any, want: Any) -> bool:
    if isinstance(got, bool) or isinstance(want, bool):
        return type(got) is type(want) and got == want
    if isinstance(got, int | float) and isinstance(want, int | float):
        return math.isclose(got, want, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    if isinstance(got, dict) and isinstance(want, dict):
        return got.keys() == want.keys() and all(same(got[k], want[k]) for k in want)
    if isinstance(got, list | tuple) and isinstance(want, list | tuple):
        return len(got) == len(want) and all(map(same, got, want))
    return got == want


def mismatches(got: dict[str, Any], want: dict[str, Any], skip: Collection[str] = ()) -> list[str]:
    """One sentence per expected field that is missing or different."""
    return [
        f"{k}: {got.get(k, 'nothing')!r} is not {v!r}"
        for k, v in want.items()
        if k not in skip and (k not in got or not same(got[k], v))
    ]
