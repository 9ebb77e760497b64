"""API-Bank's soft match as a reward: 1 iff some call is the gold call.

Source: ToolRL, benchmarks/API-Bank/generate.py, which reads the calls, and evaluate.py, which compares them.

The label is the gold call as JSON, {"name": ..., "parameters": {...}}, or a list of them, of which the first counts, as
there. A call that lacks either key is taken for the parameters alone; what has no keys ends the search; 3 is 3.0."""

from __future__ import annotations

import json
from typing import Any

from ..types import RewardParts, Task, Trajectory
from .checking.answer_text import model_text, without_end_marks
from .checking.call_text import json_lines
from .context import RewardContext
from .math_outcome import call_facts


def matches(calls: list[Any], gold: dict[str, Any] | list[dict[str, Any]]) -> bool:
    """A call may be JSON text. What the reference crashes on ends the search: text that is no JSON, a number, a list
    with both keys as items.
    Raises IndexError for an empty list of gold calls."""
    if isinstance(gold, list):
        gold = gold[0]
    for call in calls:
        try:
            value: Any = json.loads(call) if isinstance(call, str) else call
            if not ("name" in value and "parameters" in value):
                value = {"name": gold["name"], "parameters": value}
            if value["name"] == gold["name"] and value["parameters"] == gold["parameters"]:
                return True
        except (ValueError, TypeError, RecursionError):
            return False
    return False


def apibank(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """Score one response.

    Calls are the lines of the last <tool_call> block that are JSON, whatever their form; a response without a block is
    all block. parts: correct, format_ok (there are calls), call facts.
    """
    calls = json_lines(without_end_marks(model_text(trajectory)))
    correct = matches(calls, json.loads(task.label))
    return RewardParts(
        float(correct), correct, {"correct": float(correct), "format_ok": float(bool(calls)), **call_facts(trajectory)}
    )
