r"""ReTool's reward: +1 for the right \boxed answer, -1 otherwise. Source: arXiv 2504.11536; verl-recipe retool/retool.py.

options (reward.options): `turn_bonus` softens a wrong answer as the recipe does, min(-0.6, -1 + 0.05 (messages - 2)), one call
being two messages; `official` compares strings, within the last 100 characters of the response.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ..errors import unknown
from ..types import RewardParts, Task, Trajectory
from . import Ask, on_the_spot
from .checking import answer_check, minerva
from .checking.answer_text import find_answer, model_text
from .context import RewardContext
from .math_outcome import call_facts

OPTIONS = ("turn_bonus", "official")
LAST_CHARS, LAST_BOX_CHARS = 300, 100
_ANSWER_LINE = re.compile(r"(?i)Answer\s*:\s*([^\n]+)")
_FENCED = re.compile(r"```python(.*?)```", re.DOTALL)
MAX_TEXT = 400


class Score(NamedTuple):
    score: float
    acc: bool
    pred: str


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


def recipe_score(response: str, gold: str, messages: int) -> Score:
    """The recipe's strict rule: the same string in the last box of the last 100 characters."""
    pred = closed_box(response[-LAST_BOX_CHARS:])
    right = pred == gold
    return Score(1.0 if right else softened(messages), right, pred or "")


def answer_line_score(response: str, gold: str) -> Score:
    """DAPO's lenient rule: the last "Answer:" line, normalised."""
    lines = _ANSWER_LINE.findall(response[-LAST_CHARS:])
    pred = minerva.normalise_dapo(lines[-1] if lines else "[INVALID]")
    right = pred == minerva.normalise_dapo(gold)
    return Score(1.0 if right else -1.0, right, pred)


def printing(code: str) -> str:
    """The recipe's rewriting of code before it runs: the last line that is not empty is printed, whatever it is.

    This breaks code that ends in an assignment, an import, a comment or an indented line.
    """
    if fenced := _FENCED.search(code):
        code = fenced.group(1).strip()
    lines = code.split("\n")
    last = next((i for i in reversed(range(len(lines))) if lines[i]), None)
    if last is not None and not lines[last].startswith("print"):
        lines[last] = f"print({lines[last]})"
    return "\n".join(lines)


def eval_code(segment: str) -> str:
    """The code of a segment that stopped at </code>, as the official evaluation reads it: after the last python fence."""
    return segment.rpartition("```python")[2].replace("```", "").strip()


def interpreter_block(text: str) -> str:
    """What the official evaluation inserts; more than 400 characters lose their middle."""
    if len(text) > MAX_TEXT:
        text = f"{text[: MAX_TEXT // 2]}...{text[-MAX_TEXT // 2 :]}"
    return f"</code>\n<interpreter>\n{text}</interpreter>\n\n"


def eval_answer(text: str) -> str:
    r"""The official evaluation's answer: after the last "boxed", braces matched, or what is left where they do not close; without it all of the text."""
    _, found, rest = text.rpartition("boxed")
    if not found:
        return text
    if not rest.startswith("{"):
        return rest.split("$")[0].strip()
    closed = closed_box("\\boxed" + rest)
    return rest[1:] if closed is None else closed


def retool(trajectory: Trajectory, task: Task, context: RewardContext, ask: Ask = on_the_spot) -> RewardParts:
    """parts: correct, format_ok (there is a box) and those of `math_outcome.call_facts`."""
    options = dict(context.options)
    if strange := set(options) - set(OPTIONS):
        raise unknown("reward.options key", min(strange), OPTIONS, "These are the options of reward.name = 'retool'.")
    messages = 2 + 2 * len(trajectory.calls)
    if options.get("official"):
        answer = closed_box(trajectory.text[-LAST_BOX_CHARS:])
        correct = answer == task.label
    else:
        answer = find_answer(model_text(trajectory), "boxed").text
        correct = answer is not None and answer_check.equal(answer, task.label, ask)
    wrong = softened(messages) if options.get("turn_bonus") else -1.0
    parts = {"correct": float(correct), "format_ok": float(answer is not None), **call_facts(trajectory)}
    return RewardParts(1.0 if correct else wrong, correct, parts)
