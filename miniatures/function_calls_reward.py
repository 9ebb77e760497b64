"""The reward of function_calls.py: Tool-N1's, binary, with BFCL's checker in the place of equality.

BFCL allows several values of most parameters, so that equality with one list of calls would refuse right answers.
"""

from __future__ import annotations

import json

from openrlhf_tir.errors import unknown
from openrlhf_tir.rewards.bfcl import check_calls
from openrlhf_tir.rewards.checking.answer_text import model_text
from openrlhf_tir.rewards.context import RewardContext
from openrlhf_tir.rewards.tooln1 import canonical, decode, last_block
from openrlhf_tir.types import RewardParts, Task, Trajectory


def binary(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """Score a response 1 if its last <tool_call> block holds exactly the calls that are right, in any order; else 0.

    Args:
        trajectory: The response.
        task: `label` is JSON as rewards/bfcl.py has it: descriptions, allowed answers, category.
        context: `reward.options` has `think`: a thought in <think> tags is required, as by Tool-N1. Without it this
            is its ablation "binary without reasoning format".

    Returns:
        A reward of 1 or 0. `parts` tell whether the block is a list of calls, and whether it names the right functions.
        A response without a block calls nothing, which is right where nothing is to be called.
    """
    if strange := set(context.options) - {"think"}:
        raise unknown(
            "reward.options key", min(strange), ["think"], "This is the option of the function calls' reward."
        )
    label = json.loads(task.label)
    text = model_text(trajectory)
    block = last_block(text)
    calls = [] if block is None else decode(block)
    well_formed = calls is not None and canonical(calls) is not None
    thinks = "<think>" in text and "</think>" in text
    correct = named = False
    if calls is not None and well_formed:
        made = [{call["name"]: call["arguments"]} for call in calls]
        true = label["possible_answer"]
        correct = check_calls(label["function"], made, true, label["category"]) is None
        named = sorted(name for call in made for name in call) == sorted(name for call in true for name in call)
    correct = correct and (thinks or not context.options.get("think"))
    return RewardParts(
        float(correct),
        correct,
        {
            "correct": float(correct),
            "format_ok": float(block is not None and well_formed),
            "names_right": float(named),
            "truncated": float(trajectory.finish_reason == "length"),
        },
    )
