r"""ToRL: text with a python block -> "```output" -> run the block -> its output and the closing fence -> text ...

Source: arXiv 2503.23383; verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py. Every "```output" uses up one of
`max_calls`, with or without a program before it; after that it is plain text.

Two things differ from the reference, because what was sampled stays. The "```output" is the model's own; the reference
drops it and writes it again with a newline in front. An "```output" without a program gets an empty block; the
reference takes it back. For code that prints nothing the model is told so; with `torl_compat` it reads that the code
timed out, as in the reference. Which part of an execution is shown, and what counts as success, is the environment's
convention "torl" (env_servers/python_tir/conventions.py).
"""

from __future__ import annotations

from typing import ClassVar

from ...types import Completion
from . import Call, End, GoOn
from .base import SILENT, StopStringProtocol

STOP = "```output"
OPENING_FENCE = "```python"
FENCE = "```"
MAX_CHARS = 256
"""Characters of an output that are shown; the middle of a longer one is left out."""
COMPAT_SILENT = "timeout_decorator.timeout_decorator.TimeoutError: 'Timed Out'"
"""Shown for code that prints nothing, in the reference."""


def last_program(segment: str) -> str:
    """Return the last python block of a text; empty if there is none or it is not closed.

    A line that begins or ends with ```python opens a block.
    """
    program = ""
    is_inside = False
    for line in segment.split("\n"):
        if line.startswith(OPENING_FENCE) or line.endswith(OPENING_FENCE):
            program = ""
            is_inside = True
        elif line.startswith(FENCE):
            is_inside = False
        elif is_inside:
            program += line + "\n"
    return "" if is_inside else program


def shown(output: str, silent: str = SILENT) -> str:
    """Return what the model reads of an output: the last line of an error, the two ends of a long text.

    Args:
        output: Output of the program.
        silent: Text for an empty output.
    """
    if "Error" in output:
        output = output.strip().split("\n")[-1]
    text = output.strip() or silent
    half = MAX_CHARS // 2
    return f"{text[:half]}...{text[-half:]}" if len(text) >= MAX_CHARS else text


class ToRL(StopStringProtocol):
    """ToRL's turn protocol. The method says nothing about a used-up budget, so `budget_message` has no effect."""

    relies_on_template = False  # a call names no function

    stop = STOP
    cuts_at_limit = True
    env_task: ClassVar[dict[str, str]] = {"observation": "torl"}

    def __init__(
        self, *, max_calls: int, budget_message: bool = False, silent: str = SILENT, torl_compat: bool = False
    ) -> None:
        """Begin a response.

        Args:
            max_calls: Calls that the response may make.
            budget_message: No effect.
            silent: Shown for code that prints nothing.
            torl_compat: Show the reference's text in its place.
        """
        super().__init__(max_calls=max_calls, budget_message=budget_message)
        self.silent = COMPAT_SILENT if torl_compat else silent

    def advance(self, completion: Completion) -> Call | GoOn | End:
        """Return what the segment asks for: its last program."""
        if not self.stopped_for_call(completion):
            return End()
        self.calls_left -= 1
        program = last_program(completion.text.removesuffix(STOP))
        return Call(program) if program else GoOn("\n```\n")

    def insertion(self, observation: str) -> str:
        """Return the output and the closing fence; the model has written the opening one."""
        return f"\n{shown(observation, self.silent)}\n```\n"
