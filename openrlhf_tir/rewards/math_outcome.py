r"""Reward mathematics: 1 if the model itself states the right answer.

The answer must have the required format and the response must end properly, else the reward is 0. Source: arXiv
2505.07773 section 3 (outcome only). A response that the length limit cut off gets 0, as there. A sampled EOS is a
proper end; the reference's code wants a stop *string* in the last 20 characters and drops such responses.
"""

from __future__ import annotations

from ..types import RewardParts, Task, Trajectory
from .checking.answer_text import find_answer, model_text
from .context import RewardContext
from .parts import response_parts


async def math_outcome(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """Score one response.

    Returns:
        Its parts are correct, format_ok, those of `call_facts`, and code_in_correct (1 if correct with code).
    """
    has_format, answer = find_answer(model_text(trajectory), context.format)
    graded = has_format and trajectory.finish_reason == "stop"
    correct = graded and answer is not None and await context.equal(answer, task.label)
    parts = response_parts(trajectory, correct=correct, format_ok=has_format)
    parts["code_in_correct"] = float(correct and bool(trajectory.calls))
    return RewardParts(float(correct), correct, parts)
