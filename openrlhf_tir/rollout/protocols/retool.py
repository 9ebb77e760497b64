"""ReTool: text -> <code> ... </code> -> run -> <interpreter> block -> text ..., until a segment ends by itself.

Source: arXiv 2504.11536 and the official evaluation/eval.py. Three things differ from the reference. It has no limit of
calls; here </code> is plain text after `max_calls`. For code that prints nothing it inserts a TypeError of its own;
here the model is told that there was no output. Without a python fence its code begins with the whole segment; here it
begins at <code>.

With env.options.official = true, code that the official executor does not run gets that executor's text: "None" for
empty code, "RuntimeError" for code with `input(` or `os.system(`.
"""

from __future__ import annotations

from typing import ClassVar

from ...rewards.retool import FENCE, eval_code, interpreter_block
from ...types import Completion
from . import Call, End, Reject
from .base import SILENT, StopStringProtocol

FORBIDDEN = ("input(", "os.system(")
"""Code with one of these is not run by the official executor."""


def unexecuted(code: str) -> str | None:
    """Return what the official executor says about code that it does not run; None for code that it runs."""
    if not code:
        return "None"
    return "RuntimeError" if any(text in code for text in FORBIDDEN) else None


class ReTool(StopStringProtocol):
    """ReTool's turn protocol. The method says nothing about a used-up budget, so `budget_message` has no effect."""

    relies_on_template = False  # a call names no function

    stop = "</code>"
    env_task: ClassVar[dict[str, str]] = {"observation": "retool"}

    def __init__(self, *, max_calls: int, budget_message: bool = False, official: bool = False) -> None:
        """Begin a response.

        Args:
            max_calls: Calls that the response may make.
            budget_message: No effect.
            official: Do not run what the official executor does not run.
        """
        super().__init__(max_calls=max_calls, budget_message=budget_message)
        self.official = official

    def advance(self, completion: Completion) -> Call | Reject | End:
        """Return what the segment asks for: the code behind its last fence, or without one behind its last <code>."""
        if not self.stopped_for_call(completion):
            return End()
        self.calls_left -= 1
        segment = completion.text.removesuffix(self.stop)
        code = eval_code(segment if FENCE in segment else segment.rpartition("<code>")[2])
        message = unexecuted(code) if self.official else None
        return Call(code) if message is None else Reject(code, "not_executed", message)

    def insertion(self, observation: str) -> str:
        """Return the block that shows an observation."""
        # The block of the method begins with the stop string, which the model has written here.
        return interpreter_block(observation.strip() or SILENT).removeprefix(self.stop)
