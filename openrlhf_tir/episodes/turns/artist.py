"""ARTIST turns: text -> <python> code </python> -> run -> <output> block -> text ..., until a segment ends by itself.

Source: arXiv 2505.01441, section 3 (its code is not published). What it says to code that prints nothing is not known;
here it is told so. After `max_calls` calls </python> is plain text. A block without code is a failed call."""

from __future__ import annotations

from typing import ClassVar

from ...types import Completion
from ..calls.formats import PARSERS
from ..calls.tool_call import Malformed, ParsedCall
from . import Call, End, Reject

STOP = "</python>"
SILENT = "(no output: print what you want to see)"


class Artist:
    env_task: ClassVar[dict[str, str]] = {"observation": "artist"}

    def __init__(self, *, max_calls: int, budget_message: bool = False) -> None:
        """The method tells nothing about a used-up budget: `budget_message` changes nothing."""
        self.calls_left = max_calls

    @property
    def stops(self) -> tuple[str, ...]:
        return (STOP,) if self.calls_left else ()

    def advance(self, completion: Completion) -> Call | Reject | End:
        if completion.finish_reason != "stop" or completion.stop_reason != STOP:
            return End()
        self.calls_left -= 1
        match PARSERS["python"](completion.text):
            case [*_, ParsedCall(arguments=arguments)]:
                return Call(arguments["code"])
            case [*_, Malformed() as bad]:
                return Reject(bad.text, bad.defect, bad.detail)
        return Reject(completion.text, "unclosed", f"{STOP} closes nothing: write <python> before the code.")

    def insertion(self, observation: str) -> str:
        return f"\n<output>\n{observation.strip() or SILENT}\n</output>\n"

    def too_long(self) -> None:
        return None

    def after_insertion(self) -> str:
        return ""
