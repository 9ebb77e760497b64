"""Compute verl's own rewards. The row's `data_source` selects one, as in verl's runs without a reward function.

    openai/gsm8k                          the number after ####
    math, math_dapo, aime...              the last `Answer: ...` or box; a wrong answer gets -1 instead of 0
    MATH and other mathematics            the last box, as where a row names no source and its label is no JSON object
    searchR1_...                          exact match of the text in <answer>

Answers in mathematics are compared as the reward `math` does. It finds more of them equal than verl's comparison of
texts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import RewardError
from ..types import RewardParts, Task, Trajectory
from .checking.answer_text import last_boxed, model_text
from .context import RewardContext
from .gsm8k import compare
from .parts import call_facts
from .searchr1 import golds_of, verl_score

MATHEMATICS = (
    "lighteval/MATH",
    "DigitalLearningGmbH/MATH-lighteval",
    "HuggingFaceH4/MATH-500",
    "numina_aops_forum",
    "numina_synthetic_math",
    "numina_amc_aime",
    "numina_synthetic_amc",
    "numina_cn_k12",
    "numina_olympiads",
)
_ANSWER = re.compile(r"(?i)answer\s*:\s*([^\n]+)")


def kind_of(source: Any, label: str) -> str | None:
    """Return the name of the reward that verl has for a row's data source; None if it has none, or one that runs code.

    Rows that are not verl's, such as those of an evaluation, may name none: a plain answer is one in mathematics.
    """
    if source is None:
        return None if label.startswith("{") else "math"
    source = str(source)
    if source == "openai/gsm8k":
        return "gsm8k"
    if source == "math" or source.startswith(("aime", "math_dapo")):
        return "dapo"
    if source.startswith("searchR1_"):
        return "search"
    return "math" if source in MATHEMATICS else None


def source_of(columns: Mapping[str, Any], meta: Mapping[str, Any]) -> Any:
    """Return a row's data source."""
    return columns.get("data_source", meta.get("datasource"))


async def verl_default(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """Score one response.

    Returns:
        Its parts are correct and those of `call_facts`.

    Raises:
        RewardError: There is no reward for the row's data source.
    """
    source = source_of(task.extra, task.meta)
    kind = kind_of(source, task.label) if task.label else "math"
    text = model_text(trajectory)
    if kind is None:
        raise RewardError(no_reward(source))
    context.check_options((), "reward.name = 'verl'")
    if kind == "search":
        value = verl_score(text, golds_of(task.label))
        return RewardParts(value, value > 0, {**call_facts(trajectory), "correct": float(value > 0)})
    if kind == "gsm8k":
        right, _ = compare(text, task.label)
    else:
        answer_lines = _ANSWER.findall(text) if kind == "dapo" else []
        answer = answer_lines[-1].strip().strip("$") if answer_lines else last_boxed(text)
        right = answer is not None and await context.equal(last_boxed(answer) or answer, task.label)
    wrong = -1.0 if kind == "dapo" else 0.0
    return RewardParts(1.0 if right else wrong, right, {**call_facts(trajectory), "correct": float(right)})


def no_reward(source: Any) -> str:
    """Return the error message for a data source without a reward."""
    return (
        f"reward.name = 'verl': there is none of verl's own rewards here for data_source = {source!r}. Give the"
        " function that rewards such rows: reward.name = 'path/file.py:compute_score'."
    )
