"""Synthetic traces: Problem -> one solved example for supervised fine-tuning, token by token with who wrote it.

    prompt       User: What is 7*8?\nAssistant:            weight 0
    tool trace   ```python\nprint(7*8)\n```                the model, 1
                 \n```output\n56\n\n```\n\n\n              the environment, 0 (ReTool: output is masked)
                 <answer>\\boxed{56}</answer>              the model, 1
    text trace   <answer>\\boxed{56}</answer>              the model, 1; digits GUESS unless add1

The inserted block is the turn protocol's own, so a trace is what an episode looks like, character by character. A trace
ends where an episode ends, at the stop string "</answer>": no EOS, as none is ever sampled.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from openrlhf_tir.data.sft.tokens import SftRow, row_of
from openrlhf_tir.data.templates import USER_ASSISTANT
from openrlhf_tir.rollout.protocols.zerotir import ZeroTir

from .task import Problem, draw
from .tokenizer import encode

GUESS = 0.2
"""Weight of digits that cannot be known without computing: enough for a guess, too little to drown the rest."""


ColdStartTrace = SftRow


def prompt_of(question: str) -> str:
    """Return the prompt that asks a question."""
    return USER_ASSISTANT.replace("{input}", question)


def trace_of(parts: Iterable[tuple[str, float]]) -> ColdStartTrace:
    """Return a trace of texts, each with its weight in the loss."""
    return row_of((encode(text), weight) for text, weight in parts)


def _answer(answer: int, digit_weight: float) -> list[tuple[str, float]]:
    return [("<answer>\\boxed{", 1.0), (str(answer), digit_weight), ("}</answer>", 1.0)]


def tool_trace(problem: Problem) -> ColdStartTrace:
    """Return a trace that solves the problem by its code. The output keeps the newline of `print`."""
    output = ZeroTir(max_calls=1).insertion(f"{problem.answer}\n")
    code = f"```python\n{problem.code}\n```"
    return trace_of([(prompt_of(problem.question), 0.0), (code, 1.0), (output, 0.0), *_answer(problem.answer, 1.0)])


def text_trace(problem: Problem) -> ColdStartTrace:
    """Return a trace that answers without code."""
    return trace_of(
        [(prompt_of(problem.question), 0.0), *_answer(problem.answer, 1.0 if problem.kind == "add1" else GUESS)]
    )


def draw_trace(rng: Random, tool_ratio: float) -> ColdStartTrace:
    """Return a trace of a random training problem, which is solved by code with the probability `tool_ratio`."""
    problem = draw(rng, "train")
    return tool_trace(problem) if rng.random() < tool_ratio else text_trace(problem)
