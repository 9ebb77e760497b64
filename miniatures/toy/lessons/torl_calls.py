"""ToRL's with a habit: a program is run one, two or three times over before its result is believed. What OTC is for.

The further calls change nothing, so outcome reward alone has no reason to drop them, and a reward for efficiency has
nothing to lose: the effect that the paper measures on real models is there by construction, and what is seen is whether
it is found.
"""

from __future__ import annotations

from random import Random

from openrlhf_tir.data.sft.tokens import SftRow

from ..cold_start import Schedule, Stage
from ..task import draw
from . import Lesson
from .torl import rows, text_trace, tool_trace

CALLS, WEIGHTS = (1, 2, 3), (2, 4, 4)
"""Calls of a solution with code, and how often: 2.2 on average, as in the lesson `search`."""


def draw_trace(rng: Random, tool_ratio: float) -> SftRow:
    """A random training problem, solved with code with probability `tool_ratio`."""
    problem = draw(rng, "train")
    if rng.random() >= tool_ratio:
        return text_trace(problem)
    (calls,) = rng.choices(CALLS, WEIGHTS)
    return tool_trace(problem, calls)


GATES = {"accuracy": (0.25, 0.45), "code_ratio": (0.25, 0.40), "format_ok": (0.95, 1.0), "code_correct": (0.90, 1.0)}
SCHEDULE = Schedule(stages=(Stage(1240, 0.85), Stage(160, 0.36)))
"""Half as long again as the others': with theirs one program or result in five was copied wrong (seed 42), and repairs,
whose learning rate is lower, did not mend that."""
LESSON = Lesson(draw_trace, rows, GATES, SCHEDULE)
