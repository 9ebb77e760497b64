"""Which cases of a table the ordinary run takes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest


def ordinary_first(cases: Iterable[Any], count: int) -> list[Any]:
    """Return the cases as pytest parameters, all but the first `count` of them marked `extended`."""
    return [
        case if number < count else pytest.param(case, marks=pytest.mark.extended) for number, case in enumerate(cases)
    ]


def long_except(ordinary: Collection[str], cases: Iterable[Any], name: Callable[[Any], str] = str) -> list[Any]:
    """Return the cases as pytest parameters, all marked `long` except those with a name in `ordinary`.

    For cases that cost seconds and that one piece of code decides alike.

    Raises:
        ValueError: No case has one of the names.
    """
    cases = list(cases)
    unknown = set(ordinary) - {name(case) for case in cases}
    if unknown:
        raise ValueError(f"no case is called {', '.join(sorted(unknown))}")
    return [
        pytest.param(case, id=name(case), marks=[] if name(case) in ordinary else pytest.mark.long) for case in cases
    ]
