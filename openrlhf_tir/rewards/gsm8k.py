"""GSM8K's answer: 1 iff the number behind the last `####` is the label.

    "... so 6 * 7 = 42.\n#### 42"    against the label "42", or GSM8K's whole answer "... #### 42"

The prompt has to ask for the mark, as verl's rows do. Option `flexible`: where there is no mark, the last number of the
response counts. Source: arXiv 2110.14168; the rules are those of verl's gsm8k reward, on the whole response."""

from __future__ import annotations

import re

from ..errors import unknown
from ..types import RewardParts, Task, Trajectory
from .checking.answer_text import model_text
from .context import RewardContext
from .math_outcome import call_facts

_MARKED = re.compile(r"####\s*\$?\s*(-?[0-9.,]+)")
_NUMBER = re.compile(r"-?\$?[0-9][0-9.,]*")


def gsm8k(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """parts: correct, format_ok (the mark is there), and those of `call_facts`."""
    if strange := set(context.options) - {"flexible"}:
        raise unknown("reward.options key", min(strange), ("flexible",), "It is the option of reward.name = 'gsm8k'.")
    right, marked = compare(model_text(trajectory), task.label, flexible=bool(context.options.get("flexible", False)))
    facts = {**call_facts(trajectory), "correct": float(right), "format_ok": float(marked)}
    return RewardParts(float(right), right, facts)


def compare(text: str, label: str, *, flexible: bool = False) -> tuple[bool, bool]:
    """Return (whether the text's answer is the label's, whether it has the mark)."""
    marked = _MARKED.findall(text)
    numbers = marked or (_NUMBER.findall(text) if flexible else [])
    gold = _MARKED.findall(label)
    wanted = _number(gold[-1] if gold else label)
    return bool(numbers) and _number(numbers[-1]) == wanted, bool(marked)


def _number(text: str) -> float | str:
    """A number without thousands' commas, a currency or a full stop behind it; other text as it is."""
    bare = text.replace(",", "").replace("$", "").strip().rstrip(".")
    try:
        return float(bare)
    except ValueError:
        return bare
