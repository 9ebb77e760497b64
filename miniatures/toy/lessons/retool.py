r"""ReTool's: a base that can go on with a program and with an output, where one is begun, but answers a question at
once; and traces that begin one.

    base     User: What is 7*8?\nAssistant:<code>\n|```python\nprint(7*8)\n```\n</code>
             User: What is 7*8?\nAssistant:<code>...</interpreter>\n\n|<answer>\n\boxed{56}\n</answer>
             User: What is 7*8?\nAssistant:|<answer>\n\boxed{61}\n</answer>

    trace    User: What is 7*8?\nAssistant:|<code>\n```python\nprint(7*8)\n```\n</code>
             \n<interpreter>\n56</interpreter>\n\n<answer>\n\boxed{56}\n</answer>

What stands before the bar is read, not learned: a base never learns to begin a program.
`examples` are the traces of the cold start, of which COMPUTES compute and the others state the answer: fine-tuning
shows that a program can be begun, and leaves it to RL to find out that it should be. The tool ratio is the share of the
first two kinds."""

from __future__ import annotations

from random import Random
from typing import Any

from openrlhf_tir.data.schemas import DAPO_HEAD, DAPO_TAIL
from openrlhf_tir.data.sft.tokens import SftRow, row_of
from openrlhf_tir.rollout.protocols.retool import ReTool

from ...rows import Split
from ..cold_start import Schedule, Stage
from ..task import Problem, draw, make_problems
from ..tokenizer import EOS_ID, encode
from ..traces import GUESS, prompt_of
from . import Lesson

COMPUTES = 0.28
"""Share of the cold start's traces that run a program. Right 19 times of 20, where a guess is right once in forty:
fine-tuning alone is to be right in .22 to .28, whatever the number of samples."""


BEGUN = "<code>\n"
"""What a base model never writes by itself."""


def program(problem: Problem) -> str:
    return f"```python\n{problem.code}\n```\n</code>"


def output(problem: Problem) -> str:
    """What the interpreter writes of the problem's program."""
    return ReTool(max_calls=1).insertion(str(problem.answer))


def answer(problem: Problem) -> tuple[str, str, str]:
    return "<answer>\n\\boxed{", str(problem.answer), "}\n</answer>"


def response(problem: Problem, *, computes: bool) -> str:
    """As the model, and between its words the interpreter, write it."""
    call = f"{BEGUN}{program(problem)}{output(problem)}" if computes else ""
    return call + "".join(answer(problem))


def _row(given: str, *said: tuple[str, float], ends: bool = True) -> SftRow:
    """`ends`: an end of text follows; after a program the turn ends without one."""
    return row_of([(encode(given), 0.0), *((encode(text), weight) for text, weight in said), ([EOS_ID] * ends, 1.0)])


def draw_trace(rng: Random, tool_ratio: float) -> SftRow:
    """A random training problem: a program or a reading with probability `tool_ratio`, else a guess."""
    problem = draw(rng, "train")
    asked, (before, digits, after) = prompt_of(problem.question), answer(problem)
    if rng.random() >= tool_ratio:
        return _row(asked, (before, 1.0), (digits, 1.0 if problem.kind == "add1" else GUESS), (after, 1.0))
    if rng.random() < 0.6:
        return _row(asked + BEGUN, (program(problem), 1.0), ends=False)
    return _row(f"{asked}{BEGUN}{program(problem)}{output(problem)}", (before + digits + after, 1.0))


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
    draw_trace, rows, GATES, Schedule(stages=(Stage(960, 0.85), Stage(120, 0.5))), steered="", examples=examples
)
"""Steered by nothing: the tool ratio is of exercises in writing and reading, no response to a problem follows it."""
