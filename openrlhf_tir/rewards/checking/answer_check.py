"""Decide whether an answer equals the gold answer: as strings, then by exact arithmetic, then by computer algebra.

Only computer algebra can hang, so a pool runs it in a worker process (`pool.AnswerChecker`). Bad answers are data:
nothing here raises because of the content of an answer.
"""

from __future__ import annotations

from . import symbolic
from .numerals import number
from .spelling import undelimited

MAX_CHARS = 2000
"""Characters of the longest answer that is parsed. A longer one is only compared as a string: no gold answer is that
long, and parsing takes time."""


def clean(text: str) -> str:
    """Return a text without the white space and math delimiters around it."""
    return undelimited(text.strip())


def quick_equal(answer: str, gold: str) -> bool | None:
    """Compare as strings and by exact arithmetic, in microseconds. Return None if computer algebra must decide."""
    cleaned_answer = clean(answer)
    cleaned_gold = clean(gold)
    if not cleaned_answer or not cleaned_gold:
        return False
    if cleaned_answer == cleaned_gold:
        return True
    answer_number = number(cleaned_answer)
    gold_number = number(cleaned_gold)
    if answer_number and gold_number:
        return answer_number.value == gold_number.value
    return False if len(cleaned_answer) > MAX_CHARS else None


def equal(answer: str, gold: str) -> bool:
    """Return True if both mean the same. Computed here, without a deadline; rewards await `RewardContext.equal`."""
    verdict = quick_equal(answer, gold)
    return symbolic.equal(clean(answer), clean(gold)) if verdict is None else verdict
