"""ARTIST's composite reward. Source: arXiv 2505.01441, sections 3.1 and 3.2; no official code exists, edge cases are
our reading.

    maths      2 (right) + 0.125 per tag pair present + 0.5 (strict format) + successful / all calls      in [0, 4]
    functions  0.5 matched state + 0.5 matched calls + 0.025 per tag present + 0.1 (strict format)        in [0, 1.2]

Strict format: every pair is there, pairs neither nest nor overlap, and their first occurrences come in the method's
order. An answer is right if it is the label, character by character, and the model wrote it outside of its code.
Nothing to call or to match counts 0.
options: `answer_only` makes the answer's part the reward, the others are recorded. `functions` scores function calling
by what the environment told of the whole episode: state_match, state_total, functions_matched, functions_total, as of
its last word on them; a call that could not be read says nothing about them. What the task's gold (its `meta`) has
beyond, because the model did not come so far, counts as not called. Without any call nothing is matched."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError, unknown
from ..types import RewardParts, Task, Trajectory
from .context import RewardContext
from .math_outcome import call_facts

MATH_TAGS = ("think", "python", "output", "answer")
FUNCTION_TAGS = ("reasoning", "tool")
OPTIONS = ("functions", "answer_only")
FACTS = ("state_match", "state_total", "functions_matched", "functions_total")
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_NO_STATEMENT = re.compile(r"<(python|output)>.*?</\1>", re.DOTALL)
"""Code and what the model made up as its output: an answer in there is none."""


def share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def pairs_present(text: str, tags: tuple[str, ...]) -> int:
    return sum(f"<{t}>" in text and f"</{t}>" in text for t in tags)


def tags_present(text: str, tags: tuple[str, ...]) -> int:
    return sum((f"<{t}>" in text) + (f"</{t}>" in text) for t in tags)


def is_strict(text: str, tags: tuple[str, ...]) -> bool:
    found = re.findall(rf"<(/?)({'|'.join(tags)})>", text)
    opening, closing = found[::2], found[1::2]
    paired = len(opening) == len(closing) and all(
        not a[0] and b[0] and a[1] == b[1] for a, b in zip(opening, closing, strict=True)
    )
    return paired and tuple(dict.fromkeys(tag for _, tag in opening)) == tags


def shown_form(trajectory: Trajectory) -> str:
    """Return the response as its form is judged: the model's text, and the tags of the environment's output blocks.

    What a tool prints is not the model's: an <answer> in it is neither an answer nor a tag that the model wrote.
    """
    return "".join(s.text if s.source == "model" else _tags_around(s.text) for s in trajectory.segments)


def _tags_around(block: str) -> str:
    block = block.strip()
    wrapped = block.startswith("<output>") and block.endswith("</output>")
    return "<output></output>" if wrapped else ""


def math_parts(text: str, gold: str, succeeded: int, calls: int) -> dict[str, float]:
    """`text` is the response as `shown_form` gives it: it has no text of a tool."""
    answers = _ANSWER.findall(_NO_STATEMENT.sub("", text))
    return {
        "answer": 2.0 * (bool(answers) and answers[-1].strip() == gold),
        "format_relaxed": 0.125 * pairs_present(text, MATH_TAGS),
        "format_strict": 0.5 * is_strict(text, MATH_TAGS),
        "tool": share(succeeded, calls),
    }


def function_parts(text: str, facts: Mapping[str, Any]) -> dict[str, float]:
    """`facts`: numbers by the names of FACTS; a missing one is 0."""
    state, states, matched, expected = (float(facts.get(name, 0)) for name in FACTS)
    return {
        "state": 0.5 * share(state, states),
        "function": 0.5 * share(matched, expected),
        "format_relaxed": 0.025 * tags_present(text, FUNCTION_TAGS),
        "format_strict": 0.1 * is_strict(text, FUNCTION_TAGS),
    }


def episode_facts(trajectory: Trajectory, task: Task) -> dict[str, Any]:
    """FACTS over the whole episode. Gold calls are those of every turn of the user, begun or not."""
    told = next((dict(c.signals) for c in reversed(trajectory.calls) if "functions_total" in c.signals), {})
    gold = task.meta.get("gold")
    calls = sum(len(turn) for turn in gold if isinstance(turn, list)) if isinstance(gold, list) else 0
    return told | {"functions_total": max(calls, float(told.get("functions_total", 0)))}


def artist(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """parts: correct, format_ok (strict), the summands, and those of `call_facts`."""
    if strange := set(context.options) - set(OPTIONS):
        raise unknown("reward.options key", min(strange), OPTIONS, "These are the options of reward.name = 'artist'.")
    calls, answer_only = trajectory.calls, context.options.get("answer_only")
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
    facts = {
        "correct": float(correct),
        "format_ok": float(parts["format_strict"] > 0),
        **parts,
        **call_facts(trajectory),
    }
    return RewardParts(parts["answer"] if answer_only else sum(parts.values()), correct, facts)
