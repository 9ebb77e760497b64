"""ZeroTIR turns: text -> "```python" -> code -> closing fence -> run -> "```output" block -> text ...

Source: arXiv 2505.07773 and its code (env/math/math_tir_process_single_request.py). Every call has two stops, so a
counter runs to 2N for a budget of N calls; beyond it the fence stops are gone for good and a fence is plain text. Other
stops stay active inside code: "</answer>" there ends the episode.
"""

from __future__ import annotations

import re

from ...types import Completion
from . import Call, End, GoOn

BASE_STOPS = ("User:", "Human:", "Assistant:", "</answer>")
OPEN = "```python"
CLOSE = ("```", "```\n", "```\n\n")
TOO_LONG = "The output of the code execution is too long, please check your code."
USED_UP = "Tool call count has been exhausted. You can no longer call the tool.\n"
_BLOCK = re.compile(r"```python(.*?)```", re.DOTALL)


class ZeroTir:
    def __init__(
        self, *, max_calls: int, budget_message: bool = False, base_stops: tuple[str, ...] = BASE_STOPS
    ) -> None:
        self.max_calls, self.budget_message, self.base_stops = max_calls, budget_message, base_stops
        self.fences = 0
        self.in_code = False

    @property
    def stops(self) -> tuple[str, ...]:
        if self.fences >= 2 * self.max_calls:
            return self.base_stops
        return self.base_stops + (CLOSE if self.in_code else (OPEN,))

    def advance(self, completion: Completion) -> Call | GoOn | End:
        stop = completion.stop_reason
        if completion.finish_reason != "stop" or stop not in (CLOSE if self.in_code else (OPEN,)):
            return End()
        self.fences += 1
        self.in_code = not self.in_code
        if self.in_code:
            return GoOn()
        # The opening fence closed the segment before this one; put it back so that one pattern reads both.
        block = _BLOCK.search(f"{OPEN}\n{completion.text}")
        code = block.group(1).strip() if block else ""
        return Call(code) if code else GoOn()

    def insertion(self, observation: str) -> str:
        return f"\n```output\n{observation}\n```\n\n\n"

    def too_long(self) -> str:
        return TOO_LONG

    def after_insertion(self) -> str:
        return USED_UP if self.budget_message and self.fences >= 2 * self.max_calls else ""
