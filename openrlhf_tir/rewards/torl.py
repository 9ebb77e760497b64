r"""ToRL's reward: +1 for the right box, -1 otherwise. Source: arXiv 2503.23383,
verl/utils/reward_score/math_verifier.py.

options (reward.options): `wformat` scores a wrong box -0.5 (no box stays -1); `execution_penalty` is subtracted where
some call failed, never where none was made; `official` grades the whole response, tool output included, with the
reference's equivalence test and its known false verdicts, and looks at the last call only for the penalty, which it
also gives answers without code (as its code does for C = 1)."""

from __future__ import annotations

import re

from ..errors import unknown
from ..types import RewardParts, Task, Trajectory
from . import Ask, on_the_spot
from .checking import answer_check, minerva, symbolic
from .checking.answer_text import find_answer, model_text
from .context import RewardContext
from .math_outcome import call_facts

OPTIONS = ("wformat", "execution_penalty", "official")


def _braces(depth: int) -> str:
    inner = r"[^{}]*" if depth == 0 else rf"(?:[^{{}}]|\\{{|\\}}|{_braces(depth - 1)})*"
    return rf"\{{{inner}\}}"


_BOX = re.compile(rf"\\boxed(?={_braces(3)})({_braces(3)})")
"""The reference's: up to three levels of braces inside the box; deeper nesting is no box."""


def official_box(text: str) -> str | None:
    boxes = _BOX.findall(text)
    return boxes[-1][1:-1] if boxes else None


def official_equal(answer: str, gold: str) -> bool:
    """Equal strings but for case, or math-verify of both normalised but bare: only a number alone is compared."""
    if answer.strip().lower() == gold.strip().lower():
        return True
    return symbolic.verify(
        symbolic.parse_bare(minerva.normalise_torl(answer)), symbolic.parse_bare(minerva.normalise_torl(gold))
    )


def official_verdict(text: str, gold: str) -> tuple[bool, bool]:
    """(there is a box, it is right). The pattern for the box backtracks without bound on hostile text, so ask."""
    box = official_box(text)
    return box is not None, box is not None and official_equal(box, gold)


def reward_of(boxed: bool, correct: bool, wformat: bool = False) -> float:
    if correct:
        return 1.0
    return -0.5 if wformat and boxed else -1.0


def torl(trajectory: Trajectory, task: Task, context: RewardContext, ask: Ask = on_the_spot) -> RewardParts:
    """parts: correct, format_ok (there is a box) and those of `math_outcome.call_facts`."""
    options = dict(context.options)
    if strange := set(options) - set(OPTIONS):
        raise unknown("reward.options key", min(strange), OPTIONS, "These are the options of reward.name = 'torl'.")
    if options.get("official"):
        boxed, correct = ask(official_verdict, trajectory.text, task.label)
    else:
        answer = find_answer(model_text(trajectory), "boxed").text
        boxed = answer is not None
        correct = answer is not None and answer_check.equal(answer, task.label, ask)
    facts = call_facts(trajectory)
    went_well = [call.outcome == "ok" for call in trajectory.calls]
    failed = went_well[-1:] != [True] if options.get("official") else not all(went_well)
    reward = reward_of(boxed, correct, bool(options.get("wformat"))) - (
        float(options.get("execution_penalty", 0.0)) if failed else 0.0
    )
    return RewardParts(reward, correct, {"correct": float(correct), "format_ok": float(boxed), **facts})
