"""Reward GSM8K's form: 1 if the number after the last #### is right.

    "... so 6 * 7 = 42.\n#### 42"    against the label "42", or GSM8K's whole answer "... #### 42"

The prompt has to ask for the mark, as verl's rows do. With the option `flexible` the last number of a response without
a mark counts. Source: arXiv 2110.14168; the rules are those of verl's gsm8k reward, applied to the whole response.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from ..types import RewardParts, Task, Trajectory
from .checking.answer_text import model_text
from .context import RewardContext
from .parts import response_parts

_MARKED = re.compile(r"####\s*\$?\s*(-?[0-9.,]+)")
_NUMBER = re.compile(r"-?\$?[0-9][0-9.,]*")


def gsm8k(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """Score one response.

    Returns:
        Its parts are correct, format_ok (1 if it has the mark) and those of `call_facts`.
    """
    context.check_options({"flexible": bool}, "reward.name = 'gsm8k'")
    right, marked = compare(model_text(trajectory), task.label, flexible=bool(context.options.get("flexible", False)))
    return RewardParts(float(right), right, response_parts(trajectory, correct=right, format_ok=marked))


def compare(text: str, label: str, *, flexible: bool = False) -> tuple[bool, bool]:
    """Return whether a text has the answer of the label, and whether it has the mark."""
    marked = _MARKED.findall(text)
    numbers = marked or (_NUMBER.findall(text) if flexible else [])
    gold = _MARKED.findall(label)
    gold_number = _number(gold[-1] if gold else label)
    return bool(numbers) and _number(numbers[-1]) == gold_number, bool(marked)


def _number(text: str) -> Decimal | str:
    """Return the number that a text is without commas, a dollar sign and a full stop, or the text if it is none.

    All digits count, unlike in a float.
    """
    bare = text.replace(",", "").replace("$", "").strip().rstrip(".")
    try:
        number = Decimal(bare)
    except InvalidOperation:
        return bare
    return number if number.is_finite() else bare
