r"""ToRL turns: text with a python block -> "```output" -> run the block -> its output and the closing fence -> text ...

Source: arXiv 2503.23383; verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py. Every "```output" uses up one of
`max_calls`, with or without a program before it; then it is plain text. Two things differ from the reference, because
what was sampled stays: the "```output" is the model's own (the reference drops it and writes it again, a newline in
front), and one without a program gets an empty block (the reference takes it back). Code that prints nothing is told
so; option `torl_compat` says, as the reference, that it timed out. What of an execution is shown, and what counts as
gone well, is the environment's convention "torl" (python_tir/conventions.py)."""

from __future__ import annotations

from typing import ClassVar

from ...types import Completion
from . import Call, End, GoOn

STOP = "```output"
OPEN, FENCE = "```python", "```"
MAX_CHARS = 256
SILENT = "(no output: print what you want to see)"
COMPAT_SILENT = "timeout_decorator.timeout_decorator.TimeoutError: 'Timed Out'"


def last_program(segment: str) -> str:
    """The last python block, "" without one or where none is closed. A line that begins or ends in ```python opens."""
    program, inside = "", False
    for line in segment.split("\n"):
        if line.startswith(OPEN) or line.endswith(OPEN):
            program, inside = "", True
        elif line.startswith(FENCE):
            inside = False
        elif inside:
            program += line + "\n"
    return "" if inside else program


def shown(output: str, silent: str = SILENT) -> str:
    """What the model reads of an output: of errors the last line, `silent` for nothing, the ends of what is long."""
    if "Error" in output:
        output = output.strip().split("\n")[-1]
    text = output.strip() or silent
    half = MAX_CHARS // 2
    return f"{text[:half]}...{text[-half:]}" if len(text) >= MAX_CHARS else text


class ToRL:
    cuts_at_limit = True
    env_task: ClassVar[dict[str, str]] = {"observation": "torl"}

    def __init__(
        self, *, max_calls: int, budget_message: bool = False, silent: str = SILENT, torl_compat: bool = False
    ) -> None:
        """`silent`: what code that prints nothing reads. The method tells nothing about a used-up budget:
        `budget_message` changes nothing."""
        self.calls_left, self.silent = max_calls, COMPAT_SILENT if torl_compat else silent

    @property
    def stops(self) -> tuple[str, ...]:
        return (STOP,) if self.calls_left else ()

    def advance(self, completion: Completion) -> Call | GoOn | End:
        if completion.finish_reason != "stop" or completion.stop_reason != STOP:
            return End()
        self.calls_left -= 1
        program = last_program(completion.text.removesuffix(STOP))
        return Call(program) if program else GoOn("\n```\n")

    def insertion(self, observation: str) -> str:
        return f"\n{shown(observation, self.silent)}\n```\n"

    def too_long(self) -> None:
        return None

    def after_insertion(self) -> str:
        return ""
