r"""Mathematics: 1 iff the model itself states the right answer. It must be in the required format, and the response
must end properly; else 0.

Source: arXiv 2505.07773 section 3 (outcome only). A response cut off by the length limit is 0, as there. One that ends
by a sampled EOS is a proper end (the reference's code wants a stop *string* in the last 20 characters and drops such
responses)."""

from __future__ import annotations

from ..types import RewardParts, Task, Trajectory
from . import Ask, on_the_spot
from .checking import answer_check
from .checking.answer_text import find_answer, model_text
from .context import RewardContext


def call_facts(trajectory: Trajectory) -> dict[str, float]:
    """Facts about tool use: code was written, closed and executed; the share of calls that ran without error."""
    calls = trajectory.calls
    return {
        "used_code": float(bool(calls)),
        "num_calls": float(len(calls)),
        "code_ok": sum(c.outcome == "ok" for c in calls) / len(calls) if calls else 0.0,
        "truncated": float(trajectory.finish_reason == "length"),
    }


def math_outcome(trajectory: Trajectory, task: Task, context: RewardContext, ask: Ask = on_the_spot) -> RewardParts:
    """parts: correct, format_ok, used_code, num_calls, code_ok, truncated, code_in_correct (used code and correct)."""
    ok, answer = find_answer(model_text(trajectory), context.format)
    graded = ok and trajectory.finish_reason == "stop"
    correct = graded and answer is not None and answer_check.equal(answer, task.label, ask)
    facts = call_facts(trajectory)
    parts = {
        "correct": float(correct),
        "format_ok": float(ok),
        **facts,
        "code_in_correct": float(correct and facts["used_code"]),
    }
    return RewardParts(float(correct), correct, parts)
