r"""The calculator's: chains of one to four operations, one operation a call, in ZeroTIR's blocks. The environment is
env_servers/calculator.

    prompt          User: From left to right: 714*3+6\nAssistant:                          weight 0
    the model       ```python\n714*3\n```                                                  1
    environment     \n```output\n2142\n\n```\n\n\n                                          0
    the model       ```python\n2142+6\n```                                                 1
    ...
    the model       <answer>\boxed{2148}</answer>                                          1

Each call writes the last result and the next operation of the question. The operands of a chain are different digits,
and none of them is in the number that it begins with: which operation is next can be told by the last one.
"""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from openrlhf_tir.data.sft.tokens import SftRow
from openrlhf_tir.rollout.protocols.zerotir import ZeroTir

from ...rows import Split, split_of
from ..cold_start import Schedule, Stage
from ..traces import GUESS, prompt_of, trace_of
from . import Lesson

LONGEST = 4
OPERATORS = "+-*"


class Chain(NamedTuple):
    """`steps`: (operation as it is written in a call, its result)."""

    question: str
    steps: tuple[tuple[str, int], ...]

    @property
    def answer(self) -> int:
        return self.steps[-1][1]

    @property
    def split(self) -> Split:
        """Held out iff a hash of the question says so."""
        return split_of(self.question)


def apply(a: int, operator: str, b: int) -> int:
    if operator == "+":
        return a + b
    return a - b if operator == "-" else a * b


def draw_chain(rng: Random, split: Split) -> Chain:
    """One to four operations, equally often."""
    length = rng.randint(1, LONGEST)
    while True:
        digits = rng.sample("23456789", length)
        others = [d for d in "0123456789" if d not in digits]
        start = rng.choice([d for d in others if d != "0"]) + rng.choice(others) + rng.choice(others)
        value, written, steps = int(start), start, []
        for digit in digits:
            operator = rng.choice(OPERATORS)
            result = apply(value, operator, int(digit))
            steps.append((f"{value}{operator}{digit}", result))
            written, value = f"{written}{operator}{digit}", result
        chain = Chain(f"From left to right: {written}", tuple(steps))
        if chain.split == split:
            return chain


def tool_trace(chain: Chain) -> SftRow:
    turns = ZeroTir(max_calls=LONGEST)
    parts = [(prompt_of(chain.question), 0.0)]
    for operation, result in chain.steps:
        parts += [(f"```python\n{operation}\n```", 1.0), (turns.insertion(f"{result}\n"), 0.0)]
    parts.append((f"<answer>\\boxed{{{chain.answer}}}</answer>", 1.0))
    return trace_of(parts)


def text_trace(chain: Chain) -> SftRow:
    """The answer without a call: digits that cannot be known weigh little."""
    parts = [
        (prompt_of(chain.question), 0.0),
        ("<answer>\\boxed{", 1.0),
        (str(chain.answer), GUESS),
        ("}</answer>", 1.0),
    ]
    return trace_of(parts)


def draw_trace(rng: Random, tool_ratio: float) -> SftRow:
    """A random training chain, solved with calls with probability `tool_ratio`."""
    chain = draw_chain(rng, "train")
    return tool_trace(chain) if rng.random() < tool_ratio else text_trace(chain)


def rows(n: int, split: Split, seed: int) -> list[dict[str, Any]]:
    """ZeroTIR's rows: prompt and label; the length of the chain is the kind."""
    rng = Random(f"{split}/{seed}")
    chains = [draw_chain(rng, split) for _ in range(n)]
    return [{"prompt": c.question, "label": str(c.answer), "meta": {"kind": f"chain{len(c.steps)}"}} for c in chains]


GATES = {"accuracy": (0.20, 0.45), "code_ratio": (0.25, 0.45), "format_ok": (0.90, 1.0), "code_correct": (0.80, 1.0)}
LESSON = Lesson(draw_trace, rows, GATES, Schedule(stages=(Stage(900, 0.85), Stage(120, 0.36))))
