"""Reward API-Bank's soft match: 1 if some call is the gold call.

Source: ToolRL, benchmarks/API-Bank/generate.py, which reads the calls, and evaluate.py, which compares them.

The label is the gold call as JSON, {"name": ..., "parameters": {...}}, or a list of calls, of which the first counts,
as in the source. A call that lacks one of the two keys is read as the parameters alone. A value without keys ends the
search. 3 equals 3.0.
"""

from __future__ import annotations

import json
from typing import Any

from ..types import RewardParts, Task, Trajectory
from .checking.answer_text import model_text, without_end_marks
from .checking.call_text import json_lines
from .context import RewardContext
from .parts import response_parts


def matches(calls: list[Any], gold: dict[str, Any] | list[dict[str, Any]]) -> bool:
    """Return True if one of the calls is the gold call.

    A call may be JSON text. The search ends where the reference crashes: at text that is not JSON, a number, or a list
    that has both keys as items.

    Raises:
        IndexError: The list of gold calls is empty.
    """
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

    Its calls are the lines of the last <tool_call> block that are JSON, whatever their form. A response without a block
    counts as a block.

    Returns:
        Its parts are correct, format_ok (1 if there are calls) and those of `call_facts`.
    """
    calls = json_lines(without_end_marks(model_text(trajectory)))
    correct = matches(calls, json.loads(task.label))
    return RewardParts(float(correct), correct, response_parts(trajectory, correct=correct, format_ok=bool(calls)))
