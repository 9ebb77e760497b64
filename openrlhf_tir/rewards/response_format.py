"""Reward the form alone: 1 if the response has reward.format's tags.

What is in the tags does not matter. It is meant for weighted sums.
"""

from __future__ import annotations

from ..types import RewardParts, Task, Trajectory
from .checking.answer_text import find_answer, model_text
from .context import RewardContext
from .math_outcome import call_facts


def response_format(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """Score one response. Its parts are correct, format_ok and those of `call_facts`."""
    has_format = find_answer(model_text(trajectory), context.format).ok
    value = float(has_format)
    return RewardParts(value, has_format, {**call_facts(trajectory), "correct": value, "format_ok": value})
