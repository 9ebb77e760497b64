"""SkyRL turns: a chat in which each message of the model calls one function in text, and the result is a message of the
user.

    assistant   I look. <function=execute_bash>\\n<parameter=command>ls</parameter>\\n</function>
    user        EXECUTION RESULT of [execute_bash]:\\n...
    assistant   Done, I think.                                  a message without a call
    user        Please continue ...                             nothing is run

Every message uses up one of `max_calls` (the method's iterations: 50 in evaluation, 15 to 35 in training). The last one
is followed by a call of `finish` that says `cut`, so that what was done until then is judged, as the method's
evaluation does with every trajectory. Source: specs/SkyRL-v0.md (CodeAct agent of OpenHands, SkyRL-v0's
verl/workers/agentic).
"""

from __future__ import annotations

from typing import Any

from ...types import Completion
from ..calls.function import CLOSE, function_calls
from ..calls.tool_call import Malformed, ParsedCall
from . import TURN_LIMIT, Call, End, Reject
from .structured import as_action

CONTINUE = (
    "Please continue working on the task on whatever approach you think is suitable.\n"
    "If you think you have solved the task, finish the interaction by calling the function finish.\n"
    "IMPORTANT: YOU SHOULD NEVER ASK FOR HUMAN HELP."
)
MOST_CHARS = 32_768
"""Characters that are shown of one result; its middle is left out."""
FINISH = "finish"
LAST = "This was the last result: after your next message the task is judged."


class SkyRL:
    stops = (CLOSE,)

    def __init__(
        self,
        *,
        max_calls: int,
        budget_message: bool = False,
        continue_message: str = CONTINUE,
        max_turn_tokens: int | None = None,
    ) -> None:
        """continue_message: the answer to a message without a call. max_turn_tokens: of one message (the method's:
        1536); a message that is cut there has no call."""
        self.calls_left, self.budget_message, self.continue_message = max_calls, budget_message, continue_message
        self.max_turn_tokens = max_turn_tokens
        self.name: str | None = None
        """The name of the function just called; None if the reply is no result."""

    def advance(self, completion: Completion) -> Call | Reject | End:
        if (completion.finish_reason != "stop" and completion.stop_reason != TURN_LIMIT) or not self.calls_left:
            return End()
        self.calls_left -= 1
        first = next(iter(function_calls(completion.text)), None)
        self.name = first.name if isinstance(first, ParsedCall) else None
        if not self.calls_left:
            last = [first] if isinstance(first, ParsedCall) and first.name != FINISH else []
            return Call(as_action([*last, ParsedCall(FINISH, {} if self.name == FINISH else {"cut": "true"})]))
        if first is None:
            return Reject(completion.text, "no_call", self.continue_message)
        return (
            Reject(first.text, first.defect, first.detail) if isinstance(first, Malformed) else Call(as_action([first]))
        )

    def replies(self, observation: str) -> list[dict[str, Any]]:
        text = observation.strip()
        if len(text) > MOST_CHARS:
            text = (
                f"{text[: MOST_CHARS // 2]}\n[... {len(text) - MOST_CHARS} characters left out"
                f" ...]\n{text[-MOST_CHARS // 2 :]}"
            )
        if self.name is not None:
            text = f"EXECUTION RESULT of [{self.name}]:\n{text}"
        if self.budget_message and self.calls_left == 1:
            text = f"{text}\n\n{LAST}"
        return [{"role": "user", "content": text}]
