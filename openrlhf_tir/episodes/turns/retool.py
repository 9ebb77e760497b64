"""ReTool turns: text -> <code> ... </code> -> run -> <interpreter> block -> text ..., until a segment ends by itself.

Source: arXiv 2504.11536; the official evaluation/eval.py, which has no limit of calls: after `max_calls` here, </code>
is plain text. Code that prints nothing is told so (the reference inserts a TypeError of its own there), and without a
python fence the code begins at <code> (there with the whole segment).

With env.options.official = true the text is that of the official executor where it runs nothing: empty code
reads "None", and code with `input(` or `os.system(` reads "RuntimeError".
"""

from __future__ import annotations

from typing import ClassVar

from ...rewards.retool import eval_code, interpreter_block
from ...types import Completion
from . import Call, End, GoOn, Reject

STOP = "</code>"
SILENT = "(no output: print what you want to see)"
FORBIDDEN = ("input(", "os.system(")


def unexecuted(code: str) -> str | None:
    """Return what the official executor says of code that it does not run; None for code that it runs."""
    if not code:
        return "None"
    return "RuntimeError" if any(text in code for text in FORBIDDEN) else None


class ReTool:
    env_task: ClassVar[dict[str, str]] = {"observation": "retool"}

    def __init__(self, *, max_calls: int, budget_message: bool = False, official: bool = False) -> None:
        """The method tells nothing about a used-up budget: `budget_message` changes nothing."""
        self.calls_left = max_calls
        self.official = official

    @property
    def stops(self) -> tuple[str, ...]:
        return (STOP,) if self.calls_left else ()

    def advance(self, completion: Completion) -> Call | Reject | GoOn | End:
        if completion.finish_reason != "stop" or completion.stop_reason != STOP:
            return End()
        self.calls_left -= 1
        code = eval_code(completion.text.removesuffix(STOP).rpartition("<code>")[2])
        answer = unexecuted(code) if self.official else None
        return Call(code) if answer is None else Reject(code, "not_executed", answer)

    def insertion(self, observation: str) -> str:
        # the model wrote the stop string itself
        return interpreter_block(observation.strip() or SILENT).removeprefix(STOP)

    def too_long(self) -> None:
        return None

    def after_insertion(self) -> str:
        return ""
