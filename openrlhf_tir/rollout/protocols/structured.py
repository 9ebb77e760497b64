"""Structured: text -> a call with a name and arguments -> run -> its result -> text ..., until a segment ends by
itself.

    hermes    <tool_call> {"name", "arguments"} </tool_call>        <tool_response> block
    toolrl    <tool_call> {"name", "parameters"} per line           <obs> block
    tooln1    <tool_call> [{"name", "arguments"}, ...]              <tool_response> block
    tool      <tool> [{"name", "arguments"}, ...] </tool>           <tool_result> block (ARTIST)
    function  <function=NAME> <parameter=P>value</parameter> ...    EXECUTION RESULT of [NAME]:

The action sent to the environment is one JSON list, [{"name": ..., "arguments": {...}}, ...], whatever the format. If
one call of a segment is malformed, none is run: a model could not tell which half of a list was run. Each segment that
makes calls uses up one of `max_calls`, a malformed one too; after that the closing tag is plain text.

With env.options.user = true the environment has a user as well (env_servers/functions). A segment that ends without a
call is a message to the user, the action {"message": text} without the reasoning, and the answer is inserted as "#
User". It uses up one of `max_calls` too.

The result is inserted as text in which no special token becomes one, so an insertion contains no turn markers of a chat
template.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import ClassVar

from ...types import Completion
from . import Call, End, Reject
from .base import USED_UP, StopStringProtocol
from .calls.formats import PARSERS
from .calls.function import CLOSE as FUNCTION_CLOSE
from .calls.function import OPEN as FUNCTION_OPEN
from .calls.json_text import CLOSE as CALL_CLOSE
from .calls.json_text import OPEN as CALL_OPEN
from .calls.json_text import TOOL_CLOSE, TOOL_OPEN
from .calls.reasoning import without_reasoning
from .calls.tool_call import Malformed, ParsedCall


def as_action(calls: Sequence[ParsedCall]) -> str:
    """Return the action for a list of calls, as JSON."""
    return json.dumps([{"name": call.name, "arguments": call.arguments} for call in calls], ensure_ascii=False)


def as_message(text: str) -> str:
    """Return the action that sends a message to the environment's user, without the reasoning."""
    return json.dumps({"message": without_reasoning(text).strip()}, ensure_ascii=False)


class _Structured(StopStringProtocol):
    """A turn protocol over calls with names and arguments. The formats below differ in these three properties.

    Attributes:
        opening: Tag that opens a call.
        calls: Format of the calls (calls/formats.py).
        block: Text around a result. NAME stands for the names of the functions.
    """

    stop = CALL_CLOSE
    used_up = USED_UP
    opening: ClassVar[str] = CALL_OPEN
    calls: ClassVar[str]
    block: ClassVar[tuple[str, str]]

    def __init__(self, *, max_calls: int, budget_message: bool = False, user: bool = False) -> None:
        """Begin a response.

        Args:
            max_calls: Segments with calls.
            budget_message: Tell the model when its calls are used up.
            user: Send a segment without a call to the environment's user.
        """
        super().__init__(max_calls=max_calls, budget_message=budget_message)
        self.user = user
        self.names: str | None = ""
        """Names of the functions that were called last; None after a message to the user."""

    def advance(self, completion: Completion) -> Call | Reject | End:
        """Return what the segment asks for."""
        if not self.stopped_for_call(completion):
            return self._message(completion)
        parsed = PARSERS[self.calls](completion.text)
        if not parsed and self.opening in completion.text:
            return self._message(completion)  # an empty list: the model calls nothing
        self.calls_left -= 1
        if not parsed:
            detail = f"{self.stop} closes nothing: write {self.opening} first."
            parsed = [Malformed(completion.text, "unclosed", detail)]
        malformed = next((call for call in parsed if isinstance(call, Malformed)), None)
        calls = [call for call in parsed if isinstance(call, ParsedCall)]
        self.names = ", ".join(call.name for call in calls)
        if malformed:
            return Reject(malformed.text, malformed.defect, malformed.detail)
        return Call(as_action(calls))

    def _message(self, completion: Completion) -> Call | End:
        """Return the message to the user, if there is a user and the segment ended by itself."""
        if not self.user or not self.calls_left or completion.finish_reason != "stop":
            return End()
        self.calls_left -= 1
        self.names = None
        return Call(as_message(completion.text))

    def insertion(self, observation: str) -> str:
        """Return the block that shows a result or the user's answer."""
        if self.names is None:
            return f"\n# User\n{observation.strip()}\n"
        before, after = self.block
        return f"{before.replace('NAME', self.names)}{observation.strip()}{after}"


class Hermes(_Structured):
    """Qwen's format, as text."""

    calls = "hermes"
    block = ("\n<tool_response>\n", "\n</tool_response>\n")


class ToolRL(_Structured):
    """ToolRL's format (arXiv 2504.13958)."""

    calls = "toolrl"
    block = ("\n<obs>\n", "\n</obs>\n")


class ToolN1(_Structured):
    """Tool-N1's format (arXiv 2505.00024)."""

    calls = "tooln1"
    block = ("\n<tool_response>\n", "\n</tool_response>\n")


class Tool(_Structured):
    """The format of ARTIST's function calling (arXiv 2505.01441)."""

    stop = TOOL_CLOSE
    opening = TOOL_OPEN
    calls = "tool"
    block = ("\n<tool_result>\n", "\n</tool_result>\n")


class Function(_Structured):
    """SkyRL's and CodeAct's format, as text."""

    stop = FUNCTION_CLOSE
    opening = FUNCTION_OPEN
    calls = "function"
    block = ("\nEXECUTION RESULT of [NAME]:\n", "\n")
