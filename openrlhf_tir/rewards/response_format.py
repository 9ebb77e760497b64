"""Reward the form alone: 1 if the response has reward.format's tags.

What is in the tags does not matter. It is meant for weighted sums.
"""

from __future__ import annotations

from ..types import RewardParts, Task, Trajectory
from .checking.answer_text import find_answer, model_text
from .context import RewardContext
from .parts import response_parts


def response_format(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """Score one response. Its parts are correct, format_ok and those of `call_facts`."""
    has_format = find_answer(model_text(trajectory), context.format).ok
    parts = response_parts(trajectory, correct=has_format, format_ok=has_format)
    return RewardParts(float(has_format), has_format, parts)
