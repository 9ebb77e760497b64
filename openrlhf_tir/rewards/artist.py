"""Compute ARTIST's composite reward.

Source: arXiv 2505.01441, sections 3.1 and 3.2. There is no official code; the edge cases are our reading.

    maths      2 (right) + 0.125 per pair of tags present + 0.5 (strict format) + successful / all calls    in [0, 4]
    functions  0.5 matched state + 0.5 matched calls + 0.025 per tag present + 0.1 (strict format)          in [0, 1.2]

The format is strict if every pair of tags is there, pairs neither nest nor overlap, and their first occurrences are in
the method's order. The last answer is right if it equals the label, character by character.
A share of nothing (no calls, nothing to match) is 0.

The option `answer_only` makes the answer's part the reward; the other parts are recorded. The option `functions` scores
function calling by what the environment reported about the whole episode in its last signals: state_match, state_total,
functions_matched, functions_total. A call that could not be read has no such signals. Gold calls (in the task's `meta`)
of turns that the model did not reach count as not called. Without any call nothing is matched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError
from ..types import RewardParts, Task, Trajectory
from .context import RewardContext
from .parts import response_parts

MATH_TAGS = ("think", "python", "output", "answer")
FUNCTION_TAGS = ("reasoning", "tool")
OPTIONS = {"functions": bool, "answer_only": bool}
FACTS = ("state_match", "state_total", "functions_matched", "functions_total")
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def share(part: float, whole: float) -> float:
    """Return part / whole, and 0 if the whole is 0."""
    return part / whole if whole else 0.0


def pairs_present(text: str, tags: tuple[str, ...]) -> int:
    """Return the number of tags of which both the opening and the closing form occur."""
    return sum(f"<{tag}>" in text and f"</{tag}>" in text for tag in tags)


def tags_present(text: str, tags: tuple[str, ...]) -> int:
    """Return the number of opening and closing forms that occur."""
    return sum((f"<{tag}>" in text) + (f"</{tag}>" in text) for tag in tags)


def is_strict(text: str, tags: tuple[str, ...]) -> bool:
    """Return True if a text has the strict format."""
    occurrences = re.findall(rf"<(/?)({'|'.join(tags)})>", text)
    opening = occurrences[::2]
    closing = occurrences[1::2]
    paired = len(opening) == len(closing) and all(
        not a[0] and b[0] and a[1] == b[1] for a, b in zip(opening, closing, strict=True)
    )
    return paired and tuple(dict.fromkeys(tag for _, tag in opening)) == tags


def shown_form(trajectory: Trajectory) -> str:
    """Return the text whose form is judged: the model's text, and the tags of the environment's output blocks.

    The text of a tool is left out: an <answer> in it is neither an answer nor a tag that the model wrote.
    """
    return "".join(
        segment.text if segment.source == "model" else _tags_around(segment.text) for segment in trajectory.segments
    )


def _tags_around(block: str) -> str:
    """Return the output tags of a block of the environment without their content."""
    block = block.strip()
    wrapped = block.startswith("<output>") and block.endswith("</output>")
    return "<output></output>" if wrapped else ""


def math_parts(text: str, gold: str, succeeded: int, calls: int) -> dict[str, float]:
    """Return the summands of the reward for mathematics.

    Args:
        text: The response as `shown_form` returns it.
        gold: The label.
        succeeded: Number of calls that ran without an error.
        calls: Number of all calls.
    """
    answers = _ANSWER.findall(text)
    return {
        "answer": 2.0 * (bool(answers) and answers[-1].strip() == gold),
        "format_relaxed": 0.125 * pairs_present(text, MATH_TAGS),
        "format_strict": 0.5 * is_strict(text, MATH_TAGS),
        "tool": share(succeeded, calls),
    }


def function_parts(text: str, facts: Mapping[str, Any]) -> dict[str, float]:
    """Return the summands of the reward for function calling. `facts` has numbers by FACTS; a missing one is 0."""
    state, states, matched, expected = (float(facts.get(name, 0)) for name in FACTS)
    return {
        "state": 0.5 * share(state, states),
        "function": 0.5 * share(matched, expected),
        "format_relaxed": 0.025 * tags_present(text, FUNCTION_TAGS),
        "format_strict": 0.1 * is_strict(text, FUNCTION_TAGS),
    }


def episode_facts(trajectory: Trajectory, task: Task) -> dict[str, Any]:
    """Return FACTS over the whole episode. The gold calls are those of all turns of the user, reached or not."""
    reports = (dict(call.signals) for call in reversed(trajectory.calls) if "functions_total" in call.signals)
    last_report = next(reports, {})
    gold = task.meta.get("gold")
    calls = sum(len(turn) for turn in gold if isinstance(turn, list)) if isinstance(gold, list) else 0
    return last_report | {"functions_total": max(calls, float(last_report.get("functions_total", 0)))}


def artist(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """Score one response.

    Returns:
        Its parts are correct, format_ok (1 if strict), the summands, and those of `call_facts`.

    Raises:
        ConfigError: reward.options has both functions and answer_only.
    """
    context.check_options(OPTIONS, "reward.name = 'artist'")
    calls = trajectory.calls
    answer_only = context.options.get("answer_only")
    if context.options.get("functions"):
        if answer_only:
            raise ConfigError(
                "reward.options has functions and answer_only: a response of function calling has no answer."
                " Give one of the two."
            )
        parts = function_parts(shown_form(trajectory), episode_facts(trajectory, task))
        correct = parts["state"] + parts["function"] == 1.0
    else:
        succeeded = sum(call.outcome == "ok" for call in calls)
        parts = math_parts(shown_form(trajectory), task.label, succeeded, len(calls))
        correct = parts["answer"] > 0
    common = response_parts(trajectory, correct=correct, format_ok=parts["format_strict"] > 0)
    return RewardParts(parts["answer"] if answer_only else sum(parts.values()), correct, {**parts, **common})
