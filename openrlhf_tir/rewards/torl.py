r"""Compute ToRL's reward: +1 for the right box, else -1.

Source: arXiv 2503.23383, verl/utils/reward_score/math_verifier.py.

Options:

    wformat             a wrong box gets -0.5 (no box still gets -1)
    execution_penalty   subtracted if some call failed, never if there was no call
    official            grades the whole response, tool output included, by the reference's comparison with its known
                        false verdicts. The penalty depends on the last call only, and a response without code gets it
                        too (as in its code for C = 1)
"""

from __future__ import annotations

import re

from ..types import RewardParts, Task, Trajectory
from .checking import library_verdict, minerva
from .checking.answer_text import find_answer, model_text
from .context import RewardContext
from .parts import response_parts

OPTIONS: dict[str, type] = {"wformat": bool, "execution_penalty": float, "official": bool}


def _braces(depth: int) -> str:
    inner = r"[^{}]*" if depth == 0 else rf"(?:[^{{}}]|\\{{|\\}}|{_braces(depth - 1)})*"
    return rf"\{{{inner}\}}"


_BOX = re.compile(rf"\\boxed(?={_braces(3)})({_braces(3)})")
"""The reference's pattern: up to three levels of braces inside the box. A box with deeper levels does not count."""


def official_box(text: str) -> str | None:
    """Return the content of the last box as the reference reads it; None if there is none."""
    boxes = _BOX.findall(text)
    return boxes[-1][1:-1] if boxes else None


def official_equal(answer: str, gold: str) -> bool:
    """Return True if the strings are equal up to case, or Math-Verify finds the normalised answers equal.

    They are parsed without a box, so that only a number alone is compared.
    """
    if answer.strip().lower() == gold.strip().lower():
        return True
    return library_verdict.verify(
        library_verdict.parse_bare(minerva.normalise_torl(answer)),
        library_verdict.parse_bare(minerva.normalise_torl(gold)),
    )


def official_verdict(text: str, gold: str) -> tuple[bool, bool]:
    """Return whether there is a box, and whether it is right.

    Call it through `RewardContext.run_in_worker`: the pattern for the box backtracks without limit on hostile text.
    """
    box = official_box(text)
    return box is not None, box is not None and official_equal(box, gold)


def reward_of(boxed: bool, correct: bool, wformat: bool = False) -> float:
    """Return the reward without the penalty."""
    if correct:
        return 1.0
    return -0.5 if wformat and boxed else -1.0


async def torl(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """Score one response.

    Returns:
        Its parts are correct, format_ok (1 if there is a box) and those of `call_facts`.
    """
    options = dict(context.options)
    context.check_options(OPTIONS, "reward.name = 'torl'")
    if options.get("official"):
        boxed, correct = await context.run_in_worker(official_verdict, trajectory.text, task.label)
    else:
        answer = find_answer(model_text(trajectory), "boxed").text
        boxed = answer is not None
        correct = answer is not None and await context.equal(answer, task.label)
    succeeded = [call.outcome == "ok" for call in trajectory.calls]
    failed = succeeded[-1:] != [True] if options.get("official") else not all(succeeded)
    penalty = float(options.get("execution_penalty", 0.0)) if failed else 0.0
    reward = reward_of(boxed, correct, bool(options.get("wformat"))) - penalty
    return RewardParts(reward, correct, response_parts(trajectory, correct=correct, format_ok=boxed))
