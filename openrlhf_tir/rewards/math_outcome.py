r"""Reward mathematics: 1 if the model itself states the right answer.

The answer must have the required format and the response must end properly, else the reward is 0. Source: arXiv
2505.07773 section 3 (outcome only). A response that the length limit cut off gets 0, as there. A sampled EOS is a
proper end; the reference's code wants a stop *string* in the last 20 characters and drops such responses.
"""

from __future__ import annotations

from ..types import RewardParts, Task, Trajectory
from .checking.answer_text import find_answer, model_text
from .context import RewardContext


def call_facts(trajectory: Trajectory) -> dict[str, float]:
    """Return metrics of a response's calls.

    Returns:
        used_code (1 if it called a tool), num_calls, code_ok (share of the calls that ran without an error) and
        truncated (1 if the length limit ended the response).
    """
    calls = trajectory.calls
    return {
        "used_code": float(bool(calls)),
        "num_calls": float(len(calls)),
        "code_ok": sum(call.outcome == "ok" for call in calls) / len(calls) if calls else 0.0,
        "truncated": float(trajectory.finish_reason == "length"),
    }


async def math_outcome(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """Score one response.

    Returns:
        Its parts are correct, format_ok, those of `call_facts`, and code_in_correct (1 if correct with code).
    """
    has_format, answer = find_answer(model_text(trajectory), context.format)
    graded = has_format and trajectory.finish_reason == "stop"
    correct = graded and answer is not None and await context.equal(answer, task.label)
    facts = call_facts(trajectory)
    parts = {
        "correct": float(correct),
        "format_ok": float(has_format),
        **facts,
        "code_in_correct": float(correct and facts["used_code"]),
    }
    return RewardParts(float(correct), correct, parts)
