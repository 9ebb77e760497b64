r"""ToRL's: a python block and the "```output" that has it run, or a box at once. Rows as ToRL publishes them.

    prompt          User: What is 7*8?\nAssistant:                       weight 0
    the model       ```python\nprint(7*8)\n```\n```output                1
    environment     \n56\n```\n                                           0
    the model       \boxed{56} and an end of text                        1

One program in twelve lacks its closing bracket: the reply is the error, and a guess follows. So some programs of the
base fail, as some of a real base model's do, and that right answers come from programs that ran is there to be seen.
"""

from __future__ import annotations

from random import Random
from typing import Any

from openrlhf_tir.data.sft.tokens import SftRow, row_of
from openrlhf_tir.rollout.protocols.torl import ToRL

from ...rows import Split
from ..task import Problem, draw, make_problems
from ..tokenizer import EOS_ID, encode
from ..traces import GUESS, prompt_of
from . import Lesson

FAULTY = 1 / 12
"""Share of the programs that do not run."""
ERROR = "SyntaxError: '(' was never closed"
"""What CPython says of a program that lacks its last bracket, as ToRL shows it: the last line."""
SYSTEM = (
    "Please integrate natural language reasoning with programs to solve the problem above, and put your final answer"
    " within \\boxed{}."
)


def answer_parts(problem: Problem, *, known: bool) -> list[tuple[list[int], float]]:
    """The box and the end of the text; digits that cannot be known weigh little."""
    digits = 1.0 if known or problem.kind == "add1" else GUESS
    return [(encode("\\boxed{"), 1.0), (encode(str(problem.answer)), digits), ([*encode("}"), EOS_ID], 1.0)]


AGAIN = "Check.\n"
"""What a further run of a program begins with. Were it the first one's letters, a model of this size that learns to run
one would learn to run it again."""


def call_parts(program: str, output: str, again: str = "") -> list[tuple[list[int], float]]:
    """A program, and what ToRL's turns show of its run."""
    shown = ToRL(max_calls=1).insertion(output)
    return [(encode(f"{again}```python\n{program}\n```\n```output"), 1.0), (encode(shown), 0.0)]


def tool_trace(problem: Problem, calls: int = 1, *, faulty: bool = False) -> SftRow:
    """The problem solved by its code, run so many times over; or with one that lacks its last bracket, and a guess."""
    program, output = (problem.code[:-1], ERROR) if faulty else (problem.code, f"{problem.answer}\n")
    return row_of(
        [
            (encode(prompt_of(problem.question)), 0.0),
            *call_parts(program, output),
            *(calls - 1) * call_parts(program, output, AGAIN),
            *answer_parts(problem, known=not faulty),
        ]
    )


def text_trace(problem: Problem) -> SftRow:
    """The answer without code."""
    return row_of([(encode(prompt_of(problem.question)), 0.0), *answer_parts(problem, known=False)])


def draw_trace(rng: Random, tool_ratio: float) -> SftRow:
    """A random training problem, solved with code with probability `tool_ratio`."""
    problem = draw(rng, "train")
    return tool_trace(problem, faulty=rng.random() < FAULTY) if rng.random() < tool_ratio else text_trace(problem)


def rows(n: int, split: Split, seed: int) -> list[dict[str, Any]]:
    """verl's rows with ToRL's columns."""
    return [
        {
            "data_source": "toy",
            "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": row["prompt"]}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": row["label"], "stype": row["meta"]["kind"]},
            "extra_info": {"split": split, "index": i},
        }
        for i, row in enumerate(make_problems(n, split, seed))
    ]


GATES = {"accuracy": (0.22, 0.42), "code_ratio": (0.25, 0.40), "format_ok": (0.95, 1.0), "code_correct": (0.78, 1.0)}
"""Accuracy where code was used is at most 1 - FAULTY, and the guesses."""
LESSON = Lesson(draw_trace, rows, GATES)
