r"""Compute ReTool's reward: +1 for the right \boxed answer, else -1.

Source: arXiv 2504.11536; verl-recipe retool/retool.py.

The option `turn_bonus` softens a wrong answer as the recipe does: min(-0.6, -1 + 0.05 (messages - 2)), where a call is
two messages. The option `official` names the rule that finds and compares the answer:

    recipe        the last box of the last 100 characters, compared as strings (also: true)
    answer_line   DAPO's lenient rule: the last "Answer:" line of the last 300 characters, normalised
    evaluation    the text after the last "boxed", or all of the response, compared as mathematics
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ..errors import unknown
from ..types import RewardParts, Task, Trajectory
from .checking import minerva
from .checking.answer_text import find_answer, in_braces, model_text, open_boxed
from .context import RewardContext
from .parts import response_parts

OPTIONS: dict[str, type] = {"turn_bonus": bool, "official": object}
RULES = ("recipe", "answer_line", "evaluation")
LAST_BOX_CHARS = 100
LAST_LINE_CHARS = 300
FENCE = "```python"
MAX_TEXT = 400
_ANSWER_LINE = re.compile(r"(?i)Answer\s*:\s*([^\n]+)")
NO_ANSWER = "[INVALID]"
"""The answer that DAPO's rule compares if no line states one."""


class RuleScore(NamedTuple):
    """The result of verl's scorer: the reward, whether the answer is right, and the answer that it read."""

    score: float
    acc: bool
    pred: str


def softened(messages: int) -> float:
    """Return the recipe's score of a wrong answer: each call (two messages) adds 0.1, up to -0.6."""
    return min(-0.6, -1.0 + (messages - 2) / 2 * 0.1)


def closed_box(text: str) -> str | None:
    r"""Return the content of the last \boxed{...}; None if its braces do not close, even if an earlier box does."""
    _, box, tail = text.rpartition("\\boxed{")
    return in_braces("{" + tail) if box else None


def recipe_answer(response: str) -> str | None:
    """Return the answer that the recipe compares: the last box of the last 100 characters."""
    return closed_box(response[-LAST_BOX_CHARS:])


def recipe_score(response: str, gold: str, messages: int) -> RuleScore:
    """Score a response by the recipe's strict rule after so many messages."""
    pred = recipe_answer(response)
    right = pred == gold
    return RuleScore(1.0 if right else softened(messages), right, pred or "")


def answer_line_score(response: str, gold: str) -> RuleScore:
    """Score a response by DAPO's lenient rule."""
    lines = _ANSWER_LINE.findall(response[-LAST_LINE_CHARS:])
    pred = minerva.normalise_dapo(lines[-1] if lines else NO_ANSWER)
    right = pred == minerva.normalise_dapo(gold)
    return RuleScore(1.0 if right else -1.0, right, pred)


def evaluation_answer(text: str) -> str:
    """Return the answer that the official evaluation reads; without a box it is all of the text."""
    answer = open_boxed(text)
    return text if answer is None else answer


def eval_code(segment: str) -> str:
    """Return the code of a segment that stopped at </code>: the text after the last fence, as the official evaluation
    takes it."""
    return segment.rpartition(FENCE)[2].replace("```", "").strip()


def interpreter_block(text: str) -> str:
    """Return the text that the official evaluation inserts. The middle of more than 400 characters is left out."""
    if len(text) > MAX_TEXT:
        text = f"{text[: MAX_TEXT // 2]}...{text[-MAX_TEXT // 2 :]}"
    return f"</code>\n<interpreter>\n{text}</interpreter>\n\n"


async def retool(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """Score one response.

    Returns:
        Its parts are correct, format_ok (1 if there is an answer) and those of `call_facts`.
    """
    options = dict(context.options)
    context.check_options(OPTIONS, "reward.name = 'retool'")
    messages = 2 + 2 * len(trajectory.calls)
    answer: str | None
    rule = _rule(options.get("official"))
    if rule == "recipe":
        answer = recipe_answer(trajectory.text)
        correct = recipe_score(trajectory.text, task.label, messages).acc
    elif rule == "answer_line":
        scored = answer_line_score(trajectory.text, task.label)
        answer = None if scored.pred == NO_ANSWER else scored.pred
        correct = scored.acc
    elif rule == "evaluation":
        answer = evaluation_answer(trajectory.text)
        correct = await context.equal(answer, task.label)
    else:
        answer = find_answer(model_text(trajectory), "boxed").text
        correct = answer is not None and await context.equal(answer, task.label)
    wrong_score = softened(messages) if options.get("turn_bonus") else -1.0
    parts = response_parts(trajectory, correct=correct, format_ok=answer is not None)
    return RewardParts(1.0 if correct else wrong_score, correct, parts)


def _rule(option: object) -> str | None:
    """Return the official rule that the option names; None for the rule of this project.

    Raises:
        ConfigError: There is no such rule.
    """
    if option in (None, False):
        return None
    rule = "recipe" if option is True else option
    if rule not in RULES:
        raise unknown("reward.options.official", rule, RULES, "Leave it out for the rule of this project.")
    return str(rule)
