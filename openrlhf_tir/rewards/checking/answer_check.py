"""Answer check: (answer, gold) -> equal or not. Same string, then exact arithmetic, then computer algebra, cheapest
first.

Only the last can hang, so a pool runs it in a worker process (pool.AnswerChecker). Bad answers are data: nothing here
raises because of what an answer says.
"""

from __future__ import annotations

from . import symbolic
from .numerals import number

MAX_CHARS = 2000
"""An answer longer than this is only compared as a string: no gold is that long, and parsing costs the deadline."""


def clean(text: str) -> str:
    """Without the white space and math delimiters around it."""
    text = text.strip()
    for left, right in (("$$", "$$"), ("$", "$"), (r"\(", r"\)")):
        inner = text[len(left) : -len(right)]
        if text.startswith(left) and text.endswith(right) and len(text) > len(left) + len(right) and "$" not in inner:
            return inner.strip()
    return text


def quick_equal(answer: str, gold: str) -> bool | None:
    """What strings and exact arithmetic can tell, in microseconds; None where computer algebra must decide."""
    a = clean(answer)
    b = clean(gold)
    if not a or not b:
        return False
    if a == b:
        return True
    x = number(a)
    y = number(b)
    if x and y:
        return x.value == y.value
    return False if len(a) > MAX_CHARS else None


def equal(answer: str, gold: str) -> bool:
    """Return True if both mean the same. It computes here, without a deadline; rewards await `RewardContext.equal`."""
    verdict = quick_equal(answer, gold)
    return symbolic.equal(clean(answer), clean(gold)) if verdict is None else verdict
