"""The reward of numbers.py: 1 if what Python printed, or else the last number that was said, is the answer."""

from __future__ import annotations

import re

from openrlhf_tir.rewards.checking.answer_text import model_text
from openrlhf_tir.rewards.context import RewardContext
from openrlhf_tir.types import RewardParts, Task, Trajectory

_NUMBER = re.compile(r"(?<!\d)-?\d+(?:\.\d+)?")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3})")


def last_number(text: str) -> str | None:
    """Return the last number in `text` as Python prints an int, or None where there is no whole one at the end.

    Commas between thousands are ignored, and "12.0" is 12.
    """
    numbers = _NUMBER.findall(_THOUSANDS.sub("", text))
    if not numbers:
        return None
    whole, _, fraction = numbers[-1].partition(".")
    if fraction.strip("0"):
        return None
    digits = whole.removeprefix("-").lstrip("0") or "0"  # not by int(), which refuses more than 4,300 digits
    return f"-{digits}" if whole.startswith("-") and digits != "0" else digits


def right(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """Score a response by its result alone: no credit for a call, for its form or for a number that is close.

    Args:
        trajectory: The response. The last number that its last call printed counts, unless the call failed: the
            message of an error holds numbers, too.
        task: `label` is the right number in decimal digits.
        context: Not used.

    Returns:
        A reward of 1 or 0. `parts` tell whether a call was made, whether Python printed the answer, and whether it was
        right in words alone.
    """
    last = trajectory.calls[-1] if trajectory.calls else None
    printed = last is not None and last.outcome == "ok" and last_number(last.observation) == task.label
    said = not printed and last_number(model_text(trajectory)) == task.label
    correct = printed or said
    return RewardParts(
        float(correct),
        correct,
        {
            "correct": float(correct),
            "used_code": float(last is not None),
            "printed": float(printed),
            "only_said": float(said),
            "truncated": float(trajectory.finish_reason == "length"),
        },
    )
