r"""World model: the quickstart's examples with the tool's output learned as well, as a model that was pretrained on
such texts knows them.

    \n```output\n          as sure as what the model writes itself: weight 1
    56                     cannot be known without computing: weight GUESS, as in an answer without code
    \n\n```\n\n\n          weight 1

ZERO-TIR-RL trains on tool output, from models that have read programs and their output by the billion. The quickstart's
base has never been taught one character of it: for that model each is a surprise, and training on them destroys it.
"""

from __future__ import annotations

from random import Random

from openrlhf_tir.data.sft.tokens import SftRow
from openrlhf_tir.rollout.protocols.zerotir import ZeroTir

from ..task import Problem, draw, make_problems
from ..traces import GUESS, prompt_of, text_trace, trace_of
from . import Lesson


def tool_trace(problem: Problem) -> SftRow:
    """The problem solved by its code, the output a part of what is learned."""
    before, after = ZeroTir(max_calls=1).insertion("\x00").split("\x00")
    parts = [
        (prompt_of(problem.question), 0.0),
        (f"```python\n{problem.code}\n```{before}", 1.0),
        (str(problem.answer), GUESS),
        (f"\n{after}<answer>\\boxed{{{problem.answer}}}</answer>", 1.0),
    ]
    return trace_of(parts)


def draw_trace(rng: Random, tool_ratio: float) -> SftRow:
    """A random training problem, solved with code with probability `tool_ratio`."""
    problem = draw(rng, "train")
    return tool_trace(problem) if rng.random() < tool_ratio else text_trace(problem)


LESSON = Lesson(draw_trace, make_problems)
