"""ARTIST: text -> <python> code </python> -> run -> <output> block -> text ..., until a segment ends by itself.

Source: arXiv 2505.01441, section 3 (its code is not published). What the method shows for code that prints nothing is
not known; here the model is told so. After `max_calls` calls, </python> is plain text. A block without code is a failed
call.
"""

from __future__ import annotations

from typing import ClassVar

from ...types import Completion
from . import Call, End, Reject
from .base import SILENT, StopStringProtocol
from .calls.formats import PARSERS
from .calls.tool_call import Malformed, ParsedCall


class Artist(StopStringProtocol):
    """ARTIST's turn protocol. The method says nothing about a used-up budget, so `budget_message` has no effect."""

    relies_on_template = False  # a call names no function

    stop = "</python>"
    env_task: ClassVar[dict[str, str]] = {"observation": "artist"}

    def advance(self, completion: Completion) -> Call | Reject | End:
        """Return what the segment asks for: the code in its last block."""
        if not self.stopped_for_call(completion):
            return End()
        self.calls_left -= 1
        # Text before may name the tag: "I will use <python> now. <python>print(1)</python>".
        _, opening, rest = completion.text.rpartition("<python>")
        match PARSERS["python"](opening + rest):
            case [ParsedCall(arguments=arguments)]:
                return Call(arguments["code"])
            case [Malformed() as malformed]:
                return Reject(malformed.text, malformed.defect, malformed.detail)
        return Reject(completion.text, "unclosed", f"{self.stop} closes nothing: write <python> before the code.")

    def insertion(self, observation: str) -> str:
        """Return the block that shows an observation."""
        return f"\n<output>\n{observation.strip() or SILENT}\n</output>\n"
