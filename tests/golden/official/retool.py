"""ReTool: the recipe's two scores its rewriting of code, the answer that the official evaluation reads."""

from __future__ import annotations

import re
from typing import NamedTuple

from openrlhf_tir.rewards.checking import minerva
from openrlhf_tir.rewards.retool import recipe_answer, softened

from .zerotir import official_answer

LAST_CHARS = 300
_ANSWER_LINE = re.compile(r"(?i)Answer\s*:\s*([^\n]+)")
_FENCED = re.compile(r"```python(.*?)```", re.DOTALL)


class Score(NamedTuple):
    score: float
    acc: bool
    pred: str


def recipe_score(response: str, gold: str, messages: int) -> Score:
    """The recipe's strict rule: the same string."""
    pred = recipe_answer(response)
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


def eval_answer(text: str) -> str:
    r"""The official evaluation's answer: after the last "boxed", braces matched, or what is left where they do not
    close; without it all of the text."""
    answer = official_answer(text)
    return text if answer is None else answer
