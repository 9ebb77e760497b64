"""SkyRL turns: a chat in which each message of the model calls one function in text, and the result is a message of the
user.

    assistant   I look. <function=execute_bash>\\n<parameter=command>ls</parameter>\\n</function>
    user        EXECUTION RESULT of [execute_bash]:\\n...
    assistant   Done, I think.                                  a message without a call
    user        Please continue ...                             nothing is run

What is no call by OpenHands' rules (calls/function.py) is a message without a call, however much it looks like one. A
message that its own token limit cut is read like any other: a call that was not closed is one.

Every message uses up one of `max_calls` (the method's iterations: 50 in evaluation, 15 to 35 in training). The last one
is followed by a call of `finish` that says `cut`, so that what was done until then is judged, as the method's
evaluation does with every trajectory. Source: NovaSky-AI/SkyRL @ 890b62a10 (verl/workers/agentic/swe_agent/codeact.py)
and its fork of OpenHands (CodeAct agent).
"""

from __future__ import annotations

from typing import Any

from ...types import Completion
from ..calls.function import CLOSE, function_calls
from ..calls.tool_call import ParsedCall
from . import TURN_LIMIT, Call, End, Reject
from .structured import as_action

CONTINUE = (
    "Please continue working on the task on whatever approach you think is suitable.\n"
    "If you think you have solved the task, please first send your answer to user through message and then finish the"
    " interaction.\n"
    "IMPORTANT: YOU SHOULD NEVER ASK FOR HUMAN HELP.\n"
)
"""The answer to the first message without a call."""
GIVE_UP = 'If you want to give up, use the "finish" tool to finish the interaction.\n'
"""What the answers after the first one add."""
MOST_CHARS = 32_768
"""Characters that are shown of one result; its middle is left out."""
LEFT_OUT = "\n[... Observation truncated due to length ...]\n"
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
        """Begin a conversation.

        Args:
            max_calls: Messages of the model.
            budget_message: Tell the model when only one message is left.
            continue_message: The answer to a message without a call.
            max_turn_tokens: Tokens of one message (the method's: 1536).
        """
        self.calls_left = max_calls
        self.budget_message = budget_message
        self.continue_message = continue_message
        self.max_turn_tokens = max_turn_tokens
        self.continued = False
        self.name: str | None = None
        """The name of the function just called; None if the reply is no result."""

    def advance(self, completion: Completion) -> Call | Reject | End:
        if (completion.finish_reason != "stop" and completion.stop_reason != TURN_LIMIT) or not self.calls_left:
            return End()
        self.calls_left -= 1
        call = next((found for found in function_calls(completion.text) if isinstance(found, ParsedCall)), None)
        self.name = call.name if call else None
        if not self.calls_left:
            last = [call] if call and call.name != FINISH else []
            return Call(as_action([*last, ParsedCall(FINISH, {} if self.name == FINISH else {"cut": "true"})]))
        if call is not None:
            return Call(as_action([call]))
        message = self.continue_message + (GIVE_UP if self.continued else "")
        self.continued = True
        return Reject(completion.text, "no_call", message)

    def replies(self, observation: str) -> list[dict[str, Any]]:
        text = observation
        if self.name is not None:
            text = text.strip()
            if len(text) > MOST_CHARS:
                text = f"{text[: MOST_CHARS // 2]}{LEFT_OUT}{text[-MOST_CHARS // 2 :]}"
            text = f"EXECUTION RESULT of [{self.name}]:\n{text}"
        if self.budget_message and self.calls_left == 1:
            text = f"{text}\n\n{LAST}"
        return [{"role": "user", "content": text}]
