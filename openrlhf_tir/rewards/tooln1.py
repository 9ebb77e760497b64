"""Tool-N1's reward: 1 iff the response thinks and calls exactly right. Its last tool_call block must hold the
true calls, in any order; else 0.

Source: arXiv 2505.00024, verl/utils/reward_score/toolcall.py. Calls are equal when name and canonical JSON of the
arguments are, so types matter (1, 1.0, "1" and true differ). `VARIANTS` are the paper's ablations. What the official
code crashes on (a number as the block's content) is wrong here.
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
from .context import RewardContext
from .math_outcome import call_facts

_BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
VARIANTS = ("v0", "llama", "v1_lexico", "v2_wo_reason", "v3_partial_reason", "v4_partial_reason_funcname")


def last_block(text: str) -> str | None:
    """Content of the last tool_call block."""
    closed = text[: text.rfind("</tool_call>") + len("</tool_call>")] if "</tool_call>" in text else ""
    blocks = _BLOCK.findall(closed)
    return blocks[-1] if blocks else None


def decode(text: str) -> list[Any] | None:
    """The list that JSON text holds, even if encoded twice; a lone object is a list of one. else None."""
    value = _json(text.strip())
    value = [value] if isinstance(value, dict) else value
    return value if isinstance(value, list) else None


def _json(text: str) -> Any:
    """The value of JSON text, even if encoded twice; None for what is none, and for what Python's parser refuses: a
    number of 5,000 digits."""
    try:
        value = json.loads(text)
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return None


def canonical(calls: list[Any]) -> Counter[tuple[str, str]] | None:
    """Multiset of (name, arguments as JSON); None where an item is no call."""
    if not all(isinstance(c, dict) and isinstance(c.get("name"), str) and "arguments" in c for c in calls):
        return None
    try:
        return Counter((c["name"], json.dumps(c["arguments"], sort_keys=True)) for c in calls)
    except (ValueError, RecursionError):
        return None  # nested deeper than it can be written again


def gold_calls(text: str) -> list[dict[str, Any]]:
    """The true calls that a label holds. Raises ValueError for what no response can match, or, as the reference fails
    there, what is no JSON."""
    value = [] if text.strip() == "null" else _json(text)
    if not isinstance(value, list):
        raise ValueError(f'{shown(text, 80)} is not a JSON list of calls [{{"name": text, "arguments": object}}, ...]')
    for i, call in enumerate(value):
        if canonical([call]) is None:
            raise ValueError(f'call {i + 1} is {shown(call, 80)}, not {{"name": text, "arguments": object}}')
    return value


def _names(calls: Counter[tuple[str, str]]) -> Counter[str]:
    return Counter(name for name, _ in calls.elements())


def _truth(text: str) -> Counter[tuple[str, str]] | None:
    """None where it is no list of calls, which no response can match: the reference wraps a response's lone object."""
    value = _json(text)
    return canonical(value or []) if isinstance(value, list) or value is None else None


def score(text: str, truth: str, variant: str = "v0") -> float:
    """Score of the assistant's text; `truth` is the JSON list of true calls."""
    block = last_block(text)
    thinks = "<think>" in text and "</think>" in text
    wanted = _truth(truth)
    if variant == "llama" and block is None:
        # says nothing, calls nothing: right where there is nothing to call, even without a thought
        return float(wanted == Counter())
    decoded = None if block is None else decode(block)
    calls = None if decoded is None else canonical(decoded)
    right = calls is not None and calls == wanted
    match variant:
        case "v1_lexico":
            return 1.0 + 0.2 * thinks if right else -0.2 * (thinks and decoded is not None)
        case "v2_wo_reason":
            return float(right)
        case "v3_partial_reason":
            return 0.2 * thinks + 0.8 * right
        case "v4_partial_reason_funcname":
            named = not right and calls is not None and _names(calls) == _names(wanted or Counter())
            return 0.2 * thinks + 0.8 * right + 0.2 * named
        case _:
            return float(right and thinks)


def tooln1(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """options: `variant`, one of VARIANTS. Correct is v0's verdict. parts: correct, format_ok (thinks and a list of
    calls), call facts."""
    if strange := set(context.options) - {"variant"}:
        raise unknown("reward.options key", min(strange), ["variant"], "This is the option of reward.name = 'tooln1'.")
    variant = str(context.options.get("variant", "v0"))
    if variant not in VARIANTS:
        raise unknown("reward.options.variant", variant, VARIANTS, "These are the variants of reward.name = 'tooln1'.")
    text = model_text(trajectory)
    correct = score(text, task.label) == 1.0
    block = last_block(text)
    ok = "<think>" in text and "</think>" in text and block is not None and decode(block) is not None
    return RewardParts(
        score(text, task.label, variant),
        correct,
        {"correct": float(correct), "format_ok": float(ok), **call_facts(trajectory)},
    )
