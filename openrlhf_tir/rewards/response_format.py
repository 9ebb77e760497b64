"""The form alone: 1 iff the response has the tags of `reward.format`. Whatever is in them; for weighted sums."""

from __future__ import annotations

from ..types import RewardParts, Task, Trajectory
from .checking.answer_text import find_answer, model_text
from .context import RewardContext
from .math_outcome import call_facts


def response_format(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    ok = find_answer(model_text(trajectory), context.format).ok
    return RewardParts(float(ok), ok, {**call_facts(trajectory), "correct": float(ok), "format_ok": float(ok)})
