"""Structured turns: text -> a call with a name and arguments -> run -> its result -> text ..., until a segment ends by
itself.

    hermes    <tool_call> {"name", "arguments"} </tool_call>        <tool_response> block
    toolrl    <tool_call> {"name", "parameters"} per line           <obs> block
    tooln1    <tool_call> [{"name", "arguments"}, ...]              <tool_response> block
    tool      <tool> [{"name", "arguments"}, ...] </tool>           <tool_result> block (ARTIST)
    function  <function=NAME> <parameter=P>value</parameter> ...    EXECUTION RESULT of [NAME]:

The action sent to the environment is one JSON list, [{"name": ..., "arguments": {...}}, ...], whatever the model wrote.
If one call of a segment is malformed none is run: half of a list run and half not is no state that a model could reason
about. Each segment that asks for calls uses up one of `max_calls`, a malformed one too; then the closing tag is plain
text.

With env.options.user = true the environment has a user as well (env_servers/functions): a segment that ends without a
call is a message to it, the action {"message": text} without the reasoning, and the answer is inserted as "# User". It
uses up one of `max_calls`, too.

The result is inserted as text. Special tokens in it are inert, so no insertion has a chat template's turn markers."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence

from ...types import Completion
from ..calls.function import CLOSE as FUNCTION_END
from ..calls.function import OPEN as FUNCTION_OPEN
from ..calls.function import function_calls
from ..calls.json_text import CLOSE as CALL_END
from ..calls.json_text import OPEN as CALL_OPEN
from ..calls.json_text import TOOL_CLOSE, TOOL_OPEN, hermes_calls, tool_calls, tooln1_calls, toolrl_calls
from ..calls.reasoning import without_reasoning
from ..calls.tool_call import Malformed, ParsedCall
from . import Call, End, Reject

USED_UP = "Tool call count has been exhausted. You can no longer call the tool.\n"


def as_action(calls: Sequence[ParsedCall]) -> str:
    return json.dumps([{"name": c.name, "arguments": c.arguments} for c in calls], ensure_ascii=False)


def as_message(text: str) -> str:
    """Return the action that tells the environment's user what was said, without the reasoning."""
    return json.dumps({"message": without_reasoning(text).strip()}, ensure_ascii=False)


Found = list[ParsedCall | Malformed]


class _Structured(ABC):
    opening: str = CALL_OPEN
    stop: str = CALL_END
    wrap: tuple[str, str]

    @staticmethod
    @abstractmethod
    def parse(text: str) -> Found: ...

    def __init__(self, *, max_calls: int, budget_message: bool = False, user: bool = False) -> None:
        self.calls_left, self.budget_message, self.user = max_calls, budget_message, user
        self.names: str | None = ""
        """The names of the functions just called; None after a message to the user."""

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if self.calls_left else ()

    def advance(self, completion: Completion) -> Call | Reject | End:
        if completion.finish_reason != "stop" or completion.stop_reason != self.stop:
            return self._message(completion)
        found = self.parse(completion.text)
        if not found and self.opening in completion.text:  # an empty list: the model asks for nothing
            return self._message(completion)
        self.calls_left -= 1
        found = found or [
            Malformed(completion.text, "unclosed", f"{self.stop} closes nothing: write {self.opening} first.")
        ]
        bad = next((f for f in found if isinstance(f, Malformed)), None)
        calls = [f for f in found if isinstance(f, ParsedCall)]
        self.names = ", ".join(c.name for c in calls)
        return Reject(bad.text, bad.defect, bad.detail) if bad else Call(as_action(calls))

    def _message(self, completion: Completion) -> Call | End:
        if not self.user or not self.calls_left or completion.finish_reason != "stop":
            return End()
        self.calls_left -= 1
        self.names = None
        return Call(as_message(completion.text))

    def insertion(self, observation: str) -> str:
        before, after = self.wrap
        if self.names is None:
            return f"\n# User\n{observation.strip()}\n"
        return f"{before.replace('NAME', self.names)}{observation.strip()}{after}"

    def too_long(self) -> None:
        return None

    def after_insertion(self) -> str:
        return USED_UP if self.budget_message and not self.calls_left else ""


class Hermes(_Structured):
    wrap = ("\n<tool_response>\n", "\n</tool_response>\n")

    @staticmethod
    def parse(text: str) -> Found:
        return hermes_calls(text)


class ToolRL(_Structured):
    wrap = ("\n<obs>\n", "\n</obs>\n")

    @staticmethod
    def parse(text: str) -> Found:
        return toolrl_calls(text)


class ToolN1(_Structured):
    wrap = ("\n<tool_response>\n", "\n</tool_response>\n")

    @staticmethod
    def parse(text: str) -> Found:
        return tooln1_calls(text)


class Tool(_Structured):
    opening, stop = TOOL_OPEN, TOOL_CLOSE
    wrap = ("\n<tool_result>\n", "\n</tool_result>\n")

    @staticmethod
    def parse(text: str) -> Found:
        return tool_calls(text)


class Function(_Structured):
    opening, stop = FUNCTION_OPEN, FUNCTION_END
    wrap = ("\nEXECUTION RESULT of [NAME]:\n", "\n")

    @staticmethod
    def parse(text: str) -> Found:
        return function_calls(text)
