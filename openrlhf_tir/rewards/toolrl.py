"""Compute ToolRL's reward: format, 0 or 1, plus correctness, -3 to 3.

It is the reward of a step. Source: arXiv 2504.13958; its rlla.py.

    S    = Jaccard of the multisets of names + sum over truth calls of (Jaccard of parameter names + number of equal
         values)
    Smax = 1 + sum over truth calls of (1 + number of parameters)
    correctness = 6 S / Smax - 3; 3 for an equal list; -3 for a text that does not parse; 0 if the truth calls nothing

A truth call is compared with the best unused prediction of its name (greedy; the paper says optimal). Values are equal
if Python says so.

The options are the fields of `Variant`, and `updates_per_step` (1): the variants that change during training count the
reference's steps from 1, and each of these makes several updates there. `dynamic_length` switches `length` on.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, get_type_hints

from ..config.paths import shown
from ..errors import ConfigError
from ..types import RewardParts, Task, Trajectory
from .checking.answer_text import model_text, without_end_marks
from .checking.json_value import json_or_none
from .context import RewardContext
from .parts import response_parts

_THINK = r"<think>.*?</think>"
_CALL = r"<tool_call>\n.*?\n</tool_call>"
_SAY = r"<response>.*?</response>"
_CALL_TAGS = ("<tool_call>", "</tool_call>")
_SAY_TAGS = ("<response>", "</response>")
SHAPES: dict[tuple[bool, bool], tuple[re.Pattern[str], tuple[str, ...]]] = {
    (True, True): (re.compile(rf"{_THINK}\n{_CALL}\n{_SAY}", re.DOTALL), (*_CALL_TAGS, *_SAY_TAGS)),
    (True, False): (re.compile(rf"{_THINK}\n{_CALL}", re.DOTALL), _CALL_TAGS),
    (False, True): (re.compile(rf"{_THINK}\n{_SAY}", re.DOTALL), _SAY_TAGS),
    (False, False): (re.compile(_THINK, re.DOTALL), ()),
}
"""(the truth calls tools, the truth responds) -> pattern of the whole text, and the tags that must occur once."""
PER_STEP = "updates_per_step"
"""Name of the option."""


@dataclass(frozen=True, slots=True)
class Variant:
    """The paper's ablations. With all of them off it is the paper's method."""

    coarse: bool = False
    intermediate: bool = False
    refined: bool = False
    equal_max: bool = False
    two_stage: bool = False
    dynamic: bool = False
    length: bool = False
    dynamic_length: bool = False


OPTIONS: dict[str, type] = {**get_type_hints(Variant), PER_STEP: int}


class Score(NamedTuple):
    """The score of a text, and its three summands."""

    score: float
    format: float
    correctness: float
    length: float


def well_formed(text: str, truth: str) -> bool:
    """Return True if a text has the form of its target."""
    shape, once = SHAPES["<tool_call>" in truth, "<response>" in truth]
    # The tags are counted first: with one of each the pattern takes linear time.
    return all(text.count(tag) == 1 for tag in once) and bool(shape.fullmatch(text))


def calls_in(text: str) -> list[Any]:
    """Return the calls in the first <tool_call> block, which has one JSON object per line.

    As in the reference, the closing tag may be anywhere: a well-formed text has each tag once.

    Raises:
        ValueError: There is no block, or a line is not JSON.
    """
    if "</tool_call>" not in text:
        raise ValueError("no tool_call block")
    return truth_calls(text)


def truth_calls(text: str) -> list[Any]:
    """Return the calls of a target, like `calls_in`, but without the need for a closing tag, as in the reference.

    Raises:
        ValueError: There is no block, or a line is not JSON.
    """
    if "<tool_call>" not in text:
        raise ValueError("no tool_call block")
    return [json.loads(line) for line in _lines(text)]


def _lines(text: str) -> list[str]:
    """Return the lines of the first <tool_call> block."""
    return text.split("<tool_call>")[1].split("</tool_call>")[0].strip().split("\n")


def is_target(text: str) -> bool:
    """Return whether a label is a target of ToolRL."""
    return any(tag in text for tag in ("<think>", "<tool_call>", "<response>"))


def gold_calls(target: str) -> list[dict[str, Any]]:
    """Return the calls of a target, each with a name and parameters; none if it has no <tool_call>.

    Raises:
        ValueError: A line of the block is no JSON, so that nothing can be scored, or a call has another form than those
            of ToolRL's data. The message has the line's number.
    """
    calls = []
    for number, line in enumerate(_lines(target) if "<tool_call>" in target else (), 1):
        call = json_or_none(line)
        if not (
            isinstance(call, dict) and isinstance(call.get("name"), str) and isinstance(call.get("parameters"), dict)
        ):
            raise ValueError(
                f'line {number} of its <tool_call> is {shown(line, 80)}, not a JSON object {{"name": text,'
                ' "parameters": object}'
            )
        calls.append(call)
    return calls


def _jaccard(a: Collection, b: Collection, ordered: bool) -> float:
    """Return the Jaccard index of two multisets; with `ordered` 1 for equal lists and 0 for others."""
    if ordered:
        return float(list(a) == list(b))
    common = sum((Counter(a) & Counter(b)).values())
    union = len(a) + len(b) - common
    return common / union if union else 1.0


def share_right(calls: list[Any], truth: list[Any], variant: Variant) -> float:
    """Return S / Smax.

    Raises:
        KeyError, TypeError, AttributeError: A call does not have the form of a call.
    """
    points = _jaccard([call["name"] for call in calls], [true["name"] for true in truth], variant.refined)
    max_points = 1.0
    unused = list(calls)
    for true_call in truth:
        if variant.intermediate:
            max_points += 1
            if true_call in unused:
                unused.remove(true_call)
                points += 1
            continue
        parameters = true_call["parameters"]
        max_points += 1 + len(parameters)
        best = 0.0
        best_index = None
        for index, call in enumerate(unused):
            if call["name"] != true_call["name"]:
                continue
            predicted = call["parameters"]
            equal_values = sum(name in predicted and predicted[name] == value for name, value in parameters.items())
            value = _jaccard(predicted.keys(), parameters.keys(), variant.refined) + equal_values
            if value > best:
                best = value
                best_index = index
        if best_index is not None:
            points += best
            del unused[best_index]
    return points / max_points


def correctness(text: str, truth: str, low: float, high: float, variant: Variant) -> float:
    """Return the correctness of a text, between `low` and `high`; 0 if the truth calls nothing."""
    if "<tool_call>" not in truth:
        return 0.0
    true_calls = truth_calls(truth)
    try:
        calls = calls_in(text)
        if calls == true_calls:
            return high
        return low if variant.coarse else (high - low) * share_right(calls, true_calls, variant) + low
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return low


def thought_length(text: str, target: float) -> float:
    """Return the number of words of the last thought over the target, rounded to hundredths, at most 1."""
    if "<think>" not in text or "</think>" not in text:
        return 0.0
    thought = text.split("<think>")[-1].split("</think>")[0].split()
    return min(1.0, round(len(thought) / target, 2))


def score(text: str, truth: str, variant: Variant | None = None, step: int = 0) -> Score:
    """Return the score of the assistant's text.

    Args:
        text: The text.
        truth: The target.
        variant: The variant; None: the paper's method.
        step: The step of training, for the variants that change with it.
    """
    v = variant or Variant()
    bad = 0.0
    good = 1.0
    low, high = (-1.0, 1.0) if v.equal_max else (-3.0, 3.0)
    # Variants can be combined, in the order of the reference: each of them starts from the bounds of the one before.
    if v.two_stage and step < 30:
        low = low / 3
        high = high / 3
    elif v.two_stage:
        good = good / 2
    if v.dynamic:
        t = step / 150
        bad = min(-1.0, -2 + (2 + bad) * t)
        good = max(1.0, 2 - (2 - good) * t)
        low = max(-3.0, -2 + (low + 2) * t)
        high = min(3.0, 2 + (high - 2) * t)
    form = good if well_formed(text, truth) else bad
    right = correctness(text, truth, low, high, v)
    length = thought_length(text, 384 + 256 * step / 105 if v.dynamic_length else 512) if v.length else 0.0
    return Score(form + right + length, form, right, length)


def toolrl(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """Score one response. The label is the target text.

    A response is correct if it is well formed and every call is right. The variants that change during training
    (options two_stage, dynamic, dynamic_length) depend on the update at which the group was issued.

    Returns:
        Its parts are correct, format_ok, correctness, length and those of `call_facts`.

    Raises:
        ConfigError: An option is unknown, or updates_per_step is no number of updates.
    """
    text = without_end_marks(model_text(trajectory)).strip()
    context.check_options(OPTIONS, "reward.name = 'toolrl'")
    variant = Variant(**{name: bool(value) for name, value in context.options.items() if name != PER_STEP})
    if variant.dynamic_length:  # the reference's flag alone does nothing; the paper's variant is a reward of length
        variant = replace(variant, length=True)
    per_step = context.options.get(PER_STEP, 1)
    if per_step < 1:
        raise ConfigError(
            f"reward.options.{PER_STEP} = {per_step!r} is not a number of updates. Use 1, or 4 as in the paper's runs."
        )
    step = context.update // per_step + 1  # the reference counts its steps from 1
    result = score(text, task.label, variant, step)
    perfect = score(task.label.strip(), task.label, variant, step)
    is_well_formed = well_formed(text, task.label)
    correct = is_well_formed and result.correctness >= perfect.correctness
    parts = {
        **response_parts(trajectory, correct=correct, format_ok=is_well_formed),
        "correctness": result.correctness,
        "length": result.length,
    }
    return RewardParts(result.score, correct, parts)
