r"""ARTIST's for maths: a thought, a program, its output, the answer. Rows of prompt and label.

    prompt         User: What is 7*8?\nAssistant:                              weight 0
    the model      <think>Compute.</think>\n<python>\nprint(7*8)\n</python>      1
    environment    \n<output>\n56\n</output>\n                                  0
    the model      <answer>56</answer> and an end of text                       1

The tool ratio is how often the thought is there: without it all is the same but for the format. And with every example
one program in so many lacks its last bracket; the reply is the error, and a guess follows.
"""

from __future__ import annotations

from random import Random

from openrlhf_tir.data.sft.tokens import SftRow, row_of
from openrlhf_tir.rollout.protocols.artist import Artist

from ..cold_start import Schedule, Stage
from ..task import Problem, draw, make_problems
from ..tokenizer import EOS_ID, encode
from ..traces import GUESS, prompt_of
from . import Lesson
from .torl import ERROR

FAULTY = 0.3
"""Share of the programs that do not run."""
STRICT = 0.4
THOUGHT = "<think>Compute.</think>\n"


def traceback(program: str) -> str:
    """What is shown of a program whose print( is not closed: CPython's message without file name and caret
    (python_tir/conventions.py, artist)."""
    lines = program.split("\n")
    return f"line {len(lines)}\n    {lines[-1]}\n{9 * ' '}\n{ERROR}"


def trace(problem: Problem, *, thinks: bool = True, faulty: bool = False) -> SftRow:
    program = problem.code[:-1] if faulty else problem.code
    output = traceback(program) if faulty else str(problem.answer)
    parts = [
        (encode(prompt_of(problem.question)), 0.0),
        (encode(f"{THOUGHT if thinks else ''}<python>\n{program}\n</python>"), 1.0),
        (encode(Artist(max_calls=1).insertion(output)), 0.0),
        (encode("<answer>"), 1.0),
        (encode(str(problem.answer)), GUESS if faulty else 1.0),
        ([*encode("</answer>"), EOS_ID], 1.0),
    ]
    return row_of(parts)


def draw_trace(rng: Random, tool_ratio: float) -> SftRow:
    """A random training problem, with a thought with probability `tool_ratio`."""
    problem = draw(rng, "train")
    return trace(problem, thinks=rng.random() < tool_ratio, faulty=rng.random() < FAULTY)


GATES = {"accuracy": (0.55, 0.82), "format_ok": (0.30, 0.50), "code_correct": (0.55, 0.85)}
LESSON = Lesson(
    draw_trace, make_problems, GATES, Schedule(stages=(Stage(760, 0.85), Stage(120, STRICT))), steered="format_ok"
)
