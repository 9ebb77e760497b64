r"""ReTool's: a base that can write a program and read an output, each when asked to, but answers a question at once;
and traces that put these together.

    base     User: Write: What is 7*8?\nAssistant:```python\nprint(7*8)\n```            a program, where asked for one
             User: Read: 56\nAssistant:<answer>\n\boxed{56}\n</answer>                  an answer, where it is given
             User: What is 7*8?\nAssistant:<answer>\n\boxed{61}\n</answer>              a guess

    trace    User: What is 7*8?\nAssistant:<code>\n```python\nprint(7*8)\n```\n</code>\n
             <interpreter>\n56</interpreter>\n\n<answer>\n\boxed{56}\n</answer>

`examples` are the traces of the cold start, of which COMPUTES compute and the others state the answer: fine-tuning
shows that a program can be run, and leaves it to RL to find out that it should be. The tool ratio is the share of the
first two kinds. Rows as DAPO-Math-17k's."""

from __future__ import annotations

from random import Random
from typing import Any

from ...data.schemas import DAPO_HEAD, DAPO_TAIL
from ...data.sft.tokens import SftRow, row_of
from ...episodes.turns.retool import ReTool
from ..cold_start import Schedule, Stage
from ..task import Problem, Split, draw, make_problems
from ..tokenizer import EOS_ID, encode
from ..traces import GUESS, prompt_of
from . import Lesson

COMPUTES = 0.28
"""Share of the cold start's traces that run a program. Right 19 times of 20, where the others guess right in .10 to .16
of the cases: fine-tuning alone is to be right in .34 to .38, below the method's bar by a sample's noise."""


def program(problem: Problem) -> str:
    return f"```python\n{problem.code}\n```"


def answer(problem: Problem) -> tuple[str, str, str]:
    return "<answer>\n\\boxed{", str(problem.answer), "}\n</answer>"


def response(problem: Problem, *, computes: bool) -> str:
    """As the model, and between its words the interpreter, write it."""
    call = (
        f"<code>\n{program(problem)}\n</code>{ReTool(max_calls=1).insertion(str(problem.answer))}" if computes else ""
    )
    return call + "".join(answer(problem))


def _row(asked: str, *said: tuple[str, float]) -> SftRow:
    return row_of(
        [(encode(prompt_of(asked)), 0.0), *((encode(text), weight) for text, weight in said), ([EOS_ID], 1.0)]
    )


def draw_trace(rng: Random, tool_ratio: float) -> SftRow:
    """A random training problem: a program or a reading with probability `tool_ratio`, else a guess."""
    problem = draw(rng, "train")
    before, digits, after = answer(problem)
    if rng.random() >= tool_ratio:
        return _row(problem.question, (before, 1.0), (digits, 1.0 if problem.kind == "add1" else GUESS), (after, 1.0))
    if rng.random() < 0.6:
        return _row(f"Write: {problem.question}", (program(problem), 1.0))
    return _row(f"Read: {digits}", (before + digits + after, 1.0))


def rows(n: int, split: Split, seed: int) -> list[dict[str, Any]]:
    """DAPO-Math-17k's, with the instructions that it wraps around a problem."""
    return [
        {
            "data_source": "math_dapo",
            "prompt": [{"role": "user", "content": f"{DAPO_HEAD}\n\n{row['prompt']}\n\n{DAPO_TAIL} after Answer:."}],
            "ability": "MATH",
            "reward_model": {"style": "rule-lighteval/MATH_v2", "ground_truth": row["label"]},
            "extra_info": {"index": str(i)},
        }
        for i, row in enumerate(make_problems(n, split, seed))
    ]


def examples(n: int, seed: int) -> list[dict[str, Any]]:
    """Traces of the cold start; what the interpreter wrote is masked by `sft.mask_blocks`."""
    rng = Random(f"examples/{seed}")
    problems = (draw(rng, "train") for _ in range(n))
    return [{"prompt": p.question, "response": response(p, computes=rng.random() < COMPUTES)} for p in problems]


GATES = {"accuracy": (0.0, 0.15), "code_ratio": (0.0, 0.02), "format_ok": (0.90, 1.0)}
LESSON = Lesson(
    draw_trace, rows, GATES, Schedule(stages=(Stage(760, 0.85), Stage(120, 0.5))), steered="", examples=examples
)
"""Steered by nothing: the tool ratio is of exercises in writing and reading, no response to a problem follows it."""
