"""ZeroTIR: text -> "```python" -> code -> closing fence -> run -> "```output" block -> text ...

Source: arXiv 2505.07773 and its code (env/math/math_tir_process_single_request.py). Every call has two stops, so a
counter of fences runs to 2N for a budget of N calls. After that the fences are plain text. The other stops stay active
inside of code: "</answer>" there ends the episode.
"""

from __future__ import annotations

import re

from ...types import Completion
from . import Call, End, GoOn
from .base import USED_UP, TextProtocol

BASE_STOPS = ("User:", "Human:", "Assistant:", "</answer>")
OPEN = "```python"
CLOSE = ("```", "```\n", "```\n\n")
TOO_LONG = "The output of the code execution is too long, please check your code."
"""Replaces an output that is too long; the method's text."""
_BLOCK = re.compile(r"```python(.*?)```", re.DOTALL)


class ZeroTir(TextProtocol):
    """ZeroTIR's turn protocol.

    Attributes:
        fences: Opening and closing fences that stopped a segment so far.
        in_code: True while the model writes code.
    """

    relies_on_template = False  # a call names no function

    def __init__(
        self, *, max_calls: int, budget_message: bool = False, base_stops: tuple[str, ...] = BASE_STOPS
    ) -> None:
        """Begin a response.

        Args:
            max_calls: Calls that the response may make.
            budget_message: Tell the model when its calls are used up.
            base_stops: Stop strings that end the episode.
        """
        self.max_calls = max_calls
        self.budget_message = budget_message
        self.base_stops = base_stops
        self.fences = 0
        self.in_code = False

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings of the next segment."""
        if self.fences >= 2 * self.max_calls:
            return self.base_stops
        return self.base_stops + self._fence_stops()

    def _fence_stops(self) -> tuple[str, ...]:
        return CLOSE if self.in_code else (OPEN,)

    def advance(self, completion: Completion) -> Call | GoOn | End:
        """Return what the segment asks for: nothing after an opening fence, the code after a closing one."""
        if completion.finish_reason != "stop" or completion.stop_reason not in self._fence_stops():
            return End()
        self.fences += 1
        self.in_code = not self.in_code
        if self.in_code:
            return GoOn()
        # The opening fence ended the segment before this one. It is put back, so that one pattern reads both.
        block = _BLOCK.search(f"{OPEN}\n{completion.text}")
        code = block.group(1).strip() if block else ""
        return Call(code) if code else GoOn()

    def insertion(self, observation: str) -> str:
        """Return the block that shows an output."""
        return f"\n```output\n{observation}\n```\n\n\n"

    def too_long(self) -> str:
        """Return what replaces an output that is too long."""
        return TOO_LONG

    def after_insertion(self) -> str:
        """Return the message that the calls are used up, if they are and it is wanted."""
        return USED_UP if self.budget_message and self.fences >= 2 * self.max_calls else ""
