"""A lenient reward for lookup.py: the right answer is somewhere in what the model says.

It is for comparisons, not for training. A model that is given the passages and no protocol answers in a sentence, which
exact match would count as wrong; who compares both with each other measures both by this.
"""

from __future__ import annotations

import re

from openrlhf_tir.errors import unknown
from openrlhf_tir.rewards.checking.answer_text import model_text
from openrlhf_tir.rewards.context import RewardContext
from openrlhf_tir.rewards.searchr1 import last_answer, normalise
from openrlhf_tir.types import RewardParts, Task, Trajectory

_NOT_SAID = re.compile(r"<(search|information)>.*?</\1>", re.DOTALL)


def contained(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """Score a response 1 if the right answer is in it, as whole words, without regard to case and punctuation.

    Args:
        trajectory: The response. If it has an <answer>, the last one counts alone; otherwise all that the model wrote
            does, except searches and passages that it made up.
        task: `label` is the right answer.
        context: `reward.options` must be empty.

    Returns:
        A reward of 1 or 0. `parts` also tell whether the answer is right alone (exact match).
    """
    if context.options:
        raise unknown("reward.options key", min(context.options), [], "This reward has none.")
    text = _NOT_SAID.sub(" ", model_text(trajectory))
    answer = last_answer(text)
    said = normalise(text if answer is None else answer)
    right = normalise(task.label)
    correct = f" {right} " in f" {said} "
    return RewardParts(
        float(correct),
        correct,
        {
            "correct": float(correct),
            "exact": float(said == right),
            "answered": float(answer is not None),
            "searched": float(bool(trajectory.calls)),
            "truncated": float(trajectory.finish_reason == "length"),
        },
    )
