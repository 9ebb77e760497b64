"""Math-Verify's own verdicts, for methods whose official code uses it (`symbolic.equal` is ours, which is stricter).

Its deadlines use SIGALRM, which only works in a main thread, so they are off; the caller has a deadline (see
`rewards/pool.py`).
"""

from __future__ import annotations

import logging
from functools import cache, lru_cache
from typing import Any


@cache
def _library():
    import math_verify

    # It warns once per process that its deadlines are off, which is intended here.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    return math_verify


@lru_cache(maxsize=256)
def parse_boxed(latex: str) -> list[Any]:
    """Return math-verify's reading: [expression, text], [text] if it cannot be interpreted, or [].

    It is kept, so do not change it: a worker reads the same gold answer for each response of a group.
    """
    return _library().parse(f"\\boxed{{{latex}}}", parsing_timeout=None)


def parse_bare(text: str) -> list[Any]:
    """Return math-verify's reading without the box, which finds less, for methods whose verdicts depend on that."""
    return _library().parse(text, parsing_timeout=None)


def verify(gold: list[Any], answer: list[Any]) -> bool:
    """Return math-verify's verdict on two readings."""
    return _library().verify(gold, answer, timeout_seconds=None)
