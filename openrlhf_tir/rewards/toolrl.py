"""ToolRL's reward: format, 0 or 1, plus correctness, -3 to 3, of a step. Source: arXiv 2504.13958; its
rlla.py.

    S    = Jaccard of the multisets of names + sum over truth calls of (Jaccard of parameter names + number of equal
         values)
    Smax = 1 + sum over truth calls of (1 + number of parameters)
    correctness = 6 S / Smax - 3; 3 for the very same list; -3 for what does not parse; 0 where the truth calls nothing
A truth call is compared with the best unused prediction of its name (greedy; the paper says optimal). Equality is
Python's.

options (reward.options) are `Variant`'s fields, and `updates_per_step` (1): the variants that change over training
count the reference's steps, from 1, each of which makes several updates there. `dynamic_length` brings `length` with
it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from ..config.paths import shown
from ..errors import ConfigError, unknown
from ..types import RewardParts, Task, Trajectory
from .checking.answer_text import model_text
from .context import RewardContext
from .math_outcome import call_facts

_THINK, _CALL, _SAY = r"<think>.*?</think>", r"<tool_call>\n.*?\n</tool_call>", r"<response>.*?</response>"
_CALL_TAGS, _SAY_TAGS = ("<tool_call>", "</tool_call>"), ("<response>", "</response>")
SHAPES: dict[tuple[bool, bool], tuple[re.Pattern[str], tuple[str, ...]]] = {
    (True, True): (re.compile(rf"{_THINK}\n{_CALL}\n{_SAY}", re.DOTALL), (*_CALL_TAGS, *_SAY_TAGS)),
    (True, False): (re.compile(rf"{_THINK}\n{_CALL}", re.DOTALL), _CALL_TAGS),
    (False, True): (re.compile(rf"{_THINK}\n{_SAY}", re.DOTALL), _SAY_TAGS),
    (False, False): (re.compile(_THINK, re.DOTALL), ()),
}
"""(truth calls tools, truth responds) -> what the whole text looks like, and the tags that occur once."""
PER_STEP = "updates_per_step"


@dataclass(frozen=True, slots=True)
class Variant:
    """The paper's ablations; all off is its method."""

    coarse: bool = False
    intermediate: bool = False
    refined: bool = False
    equal_max: bool = False
    two_stage: bool = False
    dynamic: bool = False
    length: bool = False
    dynamic_length: bool = False


class Score(NamedTuple):
    score: float
    format: float
    correctness: float
    length: float


def well_formed(text: str, truth: str) -> bool:
    shape, once = SHAPES["<tool_call>" in truth, "<response>" in truth]
    # counts first: they keep the pattern linear
    return all(text.count(tag) == 1 for tag in once) and bool(shape.fullmatch(text))


def calls_in(text: str) -> list[Any]:
    """The calls of what follows the first <tool_call>, up to a tag, one JSON object per line. ValueError where there is
    none or a line is no JSON.

    As in the reference the closing tag only has to be somewhere: a well-formed text has each once.
    """
    if "</tool_call>" not in text:
        raise ValueError("no tool_call block")
    return truth_calls(text)


def truth_calls(text: str) -> list[Any]:
    """As `calls_in`, of a target, which the reference does not ask for its closing tag."""
    if "<tool_call>" not in text:
        raise ValueError("no tool_call block")
    return [json.loads(line) for line in _lines(text)]


def _lines(text: str) -> list[str]:
    """The lines of the first <tool_call> block."""
    return text.split("<tool_call>")[1].split("</tool_call>")[0].strip().split("\n")


def gold_calls(target: str) -> list[dict[str, Any]]:
    """The calls of a target, none where it has no <tool_call>, each with a name and parameters. Raises ValueError that
    names the line of the block which is none: with a line that is no JSON nothing can be scored, and a call of another
    form is none of ToolRL's data."""
    calls = []
    for n, line in enumerate(_lines(target) if "<tool_call>" in target else (), 1):
        try:
            call = json.loads(line)
        except (ValueError, RecursionError):
            call = None
        if not (
            isinstance(call, dict) and isinstance(call.get("name"), str) and isinstance(call.get("parameters"), dict)
        ):
            raise ValueError(
                f'line {n} of its <tool_call> is {shown(line, 80)}, not a JSON object {{"name": text, "parameters":'
                " object}"
            )
        calls.append(call)
    return calls


def _jaccard(a: Collection, b: Collection, ordered: bool) -> float:
    if ordered:
        return float(list(a) == list(b))
    common = sum((Counter(a) & Counter(b)).values())
    union = len(a) + len(b) - common
    return common / union if union else 1.0


def share_right(calls: list[Any], truth: list[Any], variant: Variant) -> float:
    """S / Smax. Raises KeyError, TypeError or AttributeError where a call does not have the form of a call."""
    got = _jaccard([c["name"] for c in calls], [t["name"] for t in truth], variant.refined)
    most = 1.0
    left = list(calls)
    for want in truth:
        if variant.intermediate:
            most += 1
            if want in left:
                left.remove(want)
                got += 1
            continue
        params = want["parameters"]
        most += 1 + len(params)
        best, chosen = 0.0, None
        for i, call in enumerate(left):
            if call["name"] != want["name"]:
                continue
            given = call["parameters"]
            value = _jaccard(given.keys(), params.keys(), variant.refined) + sum(
                k in given and given[k] == v for k, v in params.items()
            )
            if value > best:
                best, chosen = value, i
        if chosen is not None:
            got += best
            del left[chosen]
    return got / most


def correctness(text: str, truth: str, low: float, high: float, variant: Variant) -> float:
    if "<tool_call>" not in truth:
        return 0.0
    wanted = truth_calls(truth)
    try:
        calls = calls_in(text)
        if calls == wanted:
            return high
        return low if variant.coarse else (high - low) * share_right(calls, wanted, variant) + low
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return low


def thought_length(text: str, target: float) -> float:
    """Words of the last thought over the target, in hundredths, at most 1."""
    if "<think>" not in text or "</think>" not in text:
        return 0.0
    words = text.split("<think>")[-1].split("</think>")[0].split()
    return min(1.0, round(len(words) / target, 2))


def score(text: str, truth: str, variant: Variant | None = None, step: int = 0) -> Score:
    """The score of the assistant's text; `step` is the step of training, for the variants that change with it."""
    v = variant or Variant()
    bad, good = 0.0, 1.0
    low, high = (-1.0, 1.0) if v.equal_max else (-3.0, 3.0)
    # Variants may be combined, in the order of the reference: what one makes of the bounds is where the next begins.
    if v.two_stage and step < 30:
        low, high = low / 3, high / 3
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
    """The label is the target text. Correct is a perfect score of what is asked: well formed, and every call right. The
    variants that change with training (options two_stage, dynamic, dynamic_length) go by the update at which the group
    was issued.

    parts: correct, format_ok, correctness, length and those of `math_outcome.call_facts`.
    """
    text = model_text(trajectory).strip()
    known = {f.name for f in fields(Variant)} | {PER_STEP}
    if strange := set(context.options) - known:
        raise unknown("reward.options key", min(strange), known, "These are the options of reward.name = 'toolrl'.")
    variant = Variant(**{name: bool(value) for name, value in context.options.items() if name != PER_STEP})
    if variant.dynamic_length:  # the reference's flag alone does nothing; the paper's variant is a reward of length
        variant = replace(variant, length=True)
    per_step = context.options.get(PER_STEP, 1)
    if not isinstance(per_step, int) or per_step < 1:
        raise ConfigError(
            f"reward.options.{PER_STEP} = {per_step!r} is no number of updates. Use 1, or 4 as in the paper's runs."
        )
    step = context.update // per_step + 1  # the reference counts its steps from 1
    s = score(text, task.label, variant, step)
    best = score(task.label.strip(), task.label, variant, step)
    formed = well_formed(text, task.label)
    correct = formed and s.correctness >= best.correctness
    parts = {
        "correct": float(correct),
        "format_ok": float(formed),
        "correctness": s.correctness,
        "length": s.length,
        **call_facts(trajectory),
    }
    return RewardParts(s.score, correct, parts)
