r"""Symbolic equality by math-verify 0.9: (LaTeX, LaTeX) -> bool. It can hang, eat memory and die: run it under a
deadline.

Both sides are wrapped in \boxed{}: bare LaTeX is parsed to its leading number only, and 2^{11} would equal 2^{10}.
math-verify's own deadlines are SIGALRM, which only works in a main thread, so they are off; the deadline is the
caller's (see pool.py). Importing this module is free; sympy comes with the first check.
"""

from __future__ import annotations

import logging
from functools import cache, lru_cache
from typing import Any


@cache
def _library():
    import math_verify

    # It warns, once per process, that its deadlines are off; that is on purpose here.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    return math_verify


def warm() -> None:
    """Import the library and build its grammar tables now (about two seconds), so no check's deadline pays for it."""
    equal("x+1", "1+x")


def parse_boxed(latex: str) -> list[Any]:
    """math-verify's reading: [expression, text], [text] where it makes no sense of it, or []."""
    return [*_read(latex)]


@lru_cache(maxsize=256)
def _read(latex: str) -> list[Any]:
    """A worker reads the same gold answer for each response of a group: milliseconds of grammar each time."""
    found: list[Any] = _library().parse(f"\\boxed{{{latex}}}", parsing_timeout=None)
    return found


def parse_bare(text: str) -> list[Any]:
    """The same without the box, which finds less: for methods whose verdicts depend on that."""
    return _library().parse(text, parsing_timeout=None)


def verify(gold: list[Any], answer: list[Any]) -> bool:
    return _library().verify(gold, answer, timeout_seconds=None)


def equal(answer: str, gold: str) -> bool:
    """Whether math-verify takes them for equal. What it cannot digest is not equal."""
    try:
        return verify(parse_boxed(gold), parse_boxed(answer))
    except (RecursionError, MemoryError):
        return False
