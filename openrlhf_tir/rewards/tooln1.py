"""Compute Tool-N1's reward: 1 for a thought and exactly right calls.

The last tool_call block must hold the true calls, in any order. Source: arXiv 2505.00024,
verl/utils/reward_score/toolcall.py. Calls are equal if their names and the canonical JSON of their arguments are, so
types matter (1, 1.0, "1" and true differ). `VARIANTS` are the paper's ablations. A response on which the official code
crashes (its block is a number) is wrong here.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from ..config.paths import shown
from ..errors import unknown
from ..types import RewardParts, Task, Trajectory
from .checking.answer_text import model_text
from .checking.call_text import Calls
from .checking.json_value import json_or_none
from .context import RewardContext
from .parts import response_parts

_BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
VARIANTS = ("v0", "llama", "v1_lexico", "v2_wo_reason", "v3_partial_reason", "v4_partial_reason_funcname")


def last_block(text: str) -> str | None:
    """Return the content of the last tool_call block; None if there is none."""
    closed = text[: text.rfind("</tool_call>") + len("</tool_call>")] if "</tool_call>" in text else ""
    blocks = _BLOCK.findall(closed)
    return blocks[-1] if blocks else None


def decode(text: str) -> list[Any] | None:
    """Return the list in JSON text, which may be encoded twice; None if there is none.

    One object is a list of one. Text that was encoded three times is a list of characters, as in the reference.
    """
    value = _json(text.strip())
    if isinstance(value, dict):
        return [value]
    return list(value) if isinstance(value, list | str) else None


def _json(text: str) -> Any:
    """Return the value of JSON text, which may be encoded twice; None for other text."""
    value = json_or_none(text)
    return json_or_none(value) if isinstance(value, str) else value


def canonical(calls: list[Any]) -> Counter[tuple[str, str]] | None:
    """Return the multiset of (name, arguments as JSON); None if an item is not a call."""
    if not all(isinstance(call, dict) and isinstance(call.get("name"), str) and "arguments" in call for call in calls):
        return None
    try:
        return Counter((call["name"], json.dumps(call["arguments"], sort_keys=True)) for call in calls)
    except (ValueError, RecursionError):
        return None  # it is nested more deeply than Python can write


def tooln1_calls(text: str) -> Calls:
    """Return the calls of the first tool_call block as {name: arguments}; [] if it is no list of calls.

    Training grades the last block, the method's handler of BFCL decodes the first.
    """
    block = _BLOCK.search(text)
    calls = decode(block[1]) if block else None
    return [{call["name"]: call["arguments"]} for call in calls] if calls and canonical(calls) is not None else []


def gold_calls(text: str) -> list[dict[str, Any]]:
    """Return the true calls of a label.

    Raises:
        ValueError: No response could match the label, or it is not JSON, at which the reference fails.
    """
    value = [] if text.strip() == "null" else _json(text)
    if not isinstance(value, list):
        raise ValueError(f'{shown(text, 80)} is not a JSON list of calls [{{"name": text, "arguments": object}}, ...]')
    for number, call in enumerate(value, 1):
        if canonical([call]) is None:
            raise ValueError(f'call {number} is {shown(call, 80)}, not {{"name": text, "arguments": object}}')
    return value


def _names(calls: Counter[tuple[str, str]]) -> Counter[str]:
    """Return the multiset of the calls' names."""
    return Counter(name for name, _ in calls.elements())


def _truth(text: str) -> Counter[tuple[str, str]] | None:
    """Return the multiset of the true calls; None if the text is not a list of calls, which no response can match."""
    value = _json(text)
    return canonical(value or []) if isinstance(value, list) or value is None else None


def score(text: str, truth: str, variant: str = "v0") -> float:
    """Return the score of the assistant's text. `truth` is the JSON list of the true calls."""
    block = last_block(text)
    thinks = "<think>" in text and "</think>" in text
    expected_calls = _truth(truth)
    if variant == "llama" and block is None:
        # It calls nothing, which is right if there is nothing to call, even without a thought.
        return float(expected_calls == Counter())
    decoded = None if block is None else decode(block)
    calls = None if decoded is None else canonical(decoded)
    right = calls is not None and calls == expected_calls
    match variant:
        case "v1_lexico":
            return 1.0 + 0.2 * thinks if right else -0.2 * (thinks and decoded is not None)
        case "v2_wo_reason":
            return float(right)
        case "v3_partial_reason":
            return 0.2 * thinks + 0.8 * right
        case "v4_partial_reason_funcname":
            named = bool(not right and calls and _names(calls) == _names(expected_calls or Counter()))
            return 0.2 * thinks + 0.8 * right + 0.2 * named
        case _:
            return float(right and thinks)


def tooln1(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """Score one response. The option `variant` is one of VARIANTS. It is correct if v0 says so.

    Returns:
        Its parts are correct, format_ok (1 if it has a thought and a list of calls) and those of `call_facts`.
    """
    context.check_options(["variant"], "reward.name = 'tooln1'")
    variant = str(context.options.get("variant", "v0"))
    if variant not in VARIANTS:
        raise unknown("reward.options.variant", variant, VARIANTS, "These are the variants of reward.name = 'tooln1'.")
    text = model_text(trajectory)
    correct = score(text, task.label) == 1.0
    block = last_block(text)
    ok = "<think>" in text and "</think>" in text and block is not None and decode(block) is not None
    parts = response_parts(trajectory, correct=correct, format_ok=ok)
    return RewardParts(score(text, task.label, variant), correct, parts)
