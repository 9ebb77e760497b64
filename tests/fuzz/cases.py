"""Cases: a kind of input and a seed -> one try. A failure names both, so that `replay` repeats it alone."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping
from pathlib import Path

from openrlhf_tir.errors import TirError

Case = Callable[[random.Random, Path], None]


def replay(case: Case, seed: int, tmp: Path) -> None:
    """One case. Passes over our own errors, raises whatever else the code under test raised."""
    with contextlib.suppress(TirError):
        case(random.Random(f"{case.__name__} {seed}"), tmp)


def tried(case: Case, first: int, count: int, tmp: Path) -> None:
    for seed in range(first, first + count):
        try:
            replay(case, seed, tmp)
        except Exception as e:
            raise AssertionError(
                f"replay({case.__name__}, {seed}, tmp_path) raised {type(e).__name__}: {str(e)[:500]}"
            ) from e


def ends(case: Case, tmp: Path, most: int = 200) -> set[str]:
    """Which of "accepted" and "refused" the first cases reach. Damage that always or never hurts proves nothing."""
    found = set()
    for seed in range(most):
        try:
            case(random.Random(f"{case.__name__} {seed}"), tmp)
            found.add("accepted")
        except TirError:
            found.add("refused")
        if len(found) == 2:
            break
    return found


def table(*cases: Case) -> Mapping[str, Case]:
    return {case.__name__: case for case in cases}
