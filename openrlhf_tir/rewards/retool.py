r"""ReTool's reward: +1 for the right \boxed answer, -1 otherwise. Source: arXiv 2504.11536; verl-recipe
retool/retool.py.

options (reward.options): `turn_bonus` softens a wrong answer as the recipe does, min(-0.6, -1 + 0.05 (messages - 2)),
one call being two messages; `official` compares strings, within the last 100 characters of the response.
"""

from __future__ import annotations

from ..errors import unknown
from ..types import RewardParts, Task, Trajectory
from . import Ask, on_the_spot
from .checking import answer_check
from .checking.answer_text import find_answer, model_text
from .context import RewardContext
from .math_outcome import call_facts

OPTIONS = ("turn_bonus", "official")
LAST_BOX_CHARS = 100
MAX_TEXT = 400


def softened(messages: int) -> float:
    """The recipe's score of a wrong answer after so many messages: a call (two messages) is worth 0.1, up to -0.6."""
    return min(-0.6, -1.0 + (messages - 2) / 2 * 0.1)


def closed_box(text: str) -> str | None:
    r"""Content of the last \boxed{ if its braces close; an earlier box does not count where the last is open."""
    start = text.rfind("\\boxed{")
    depth = 0
    for i in range(start + len("\\boxed"), len(text)) if start >= 0 else ():
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return text[start + len("\\boxed{") : i]
    return None


def recipe_answer(response: str) -> str | None:
    """What the recipe compares: the last box of the last 100 characters."""
    return closed_box(response[-LAST_BOX_CHARS:])


def eval_code(segment: str) -> str:
    """The code of a segment that stopped at </code>, as the official evaluation does: after the last python fence."""
    return segment.rpartition("```python")[2].replace("```", "").strip()


def interpreter_block(text: str) -> str:
    """What the official evaluation inserts; more than 400 characters lose their middle."""
    if len(text) > MAX_TEXT:
        text = f"{text[: MAX_TEXT // 2]}...{text[-MAX_TEXT // 2 :]}"
    return f"</code>\n<interpreter>\n{text}</interpreter>\n\n"


def retool(trajectory: Trajectory, task: Task, context: RewardContext, ask: Ask = on_the_spot) -> RewardParts:
    """parts: correct, format_ok (there is a box) and those of `math_outcome.call_facts`."""
    options = dict(context.options)
    if strange := set(options) - set(OPTIONS):
        raise unknown("reward.options key", min(strange), OPTIONS, "These are the options of reward.name = 'retool'.")
    messages = 2 + 2 * len(trajectory.calls)
    if options.get("official"):
        answer = recipe_answer(trajectory.text)
        correct = answer == task.label
    else:
        answer = find_answer(model_text(trajectory), "boxed").text
        correct = answer is not None and answer_check.equal(answer, task.label, ask)
    wrong = softened(messages) if options.get("turn_bonus") else -1.0
    parts = {"correct": float(correct), "format_ok": float(answer is not None), **call_facts(trajectory)}
    return RewardParts(1.0 if correct else wrong, correct, parts)
