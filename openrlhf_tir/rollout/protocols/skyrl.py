"""SkyRL: a chat in which each message of the model calls one function in text, and the result is a message of the user.

    assistant   I look. <function=execute_bash>\\n<parameter=command>ls</parameter>\\n</function>
    user        EXECUTION RESULT of [execute_bash]:\\n...
    assistant   Done, I think.                                  a message without a call
    user        Please continue ...                             nothing is run

A text that is not a call by OpenHands' rules (calls/function.py) is a message without a call, however much it looks
like one. A message that its own token limit cut is read like any other; a call that was not closed counts as a call.

Every message uses up one of `max_calls` (the method's iterations: 50 in evaluation, 15 to 35 in training). After the
last one, `finish` is called with `cut`, so that the work done until then is judged, as the method's evaluation does
with every trajectory.

Source: NovaSky-AI/SkyRL @ 890b62a10 (verl/workers/agentic/swe_agent/codeact.py) and its fork of OpenHands (CodeAct
agent).
"""

from __future__ import annotations

from typing import Any

from ...types import Completion
from . import TURN_LIMIT, Call, End, Reject
from .calls.function import CLOSE, function_calls
from .calls.tool_call import ParsedCall
from .structured import as_action

CONTINUE = (
    "Please continue working on the task on whatever approach you think is suitable.\n"
    "If you think you have solved the task, please first send your answer to user through message and then finish the"
    " interaction.\n"
    "IMPORTANT: YOU SHOULD NEVER ASK FOR HUMAN HELP.\n"
)
"""The answer to a message without a call; the method's text."""
GIVE_UP = 'If you want to give up, use the "finish" tool to finish the interaction.\n'
"""Added to this answer from the second time on; the method's text."""
MAX_CHARS = 32_768
"""Characters of a result that are shown; the middle of a longer one is left out."""
LEFT_OUT = "\n[... Observation truncated due to length ...]\n"
"""Shown in place of that middle; the method's text."""
FINISH = "finish"
"""Name of the function that ends the work."""
LAST = "This was the last result: after your next message the task is judged."
"""Shown before the last message, with env.options.budget_message."""


class SkyRL:
    """SkyRL's messages protocol.

    Attributes:
        calls_left: Messages that the model may still write.
        name: Name of the function that was called last; None if the reply is not a result.
    """

    stops = (CLOSE,)
    relies_on_template = False  # the system message of its rows describes the functions

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
        self.name: str | None = None
        self._was_told_to_continue = False

    def advance(self, completion: Completion) -> Call | Reject | End:
        """Return what the message asks for."""
        ended_by_model = completion.finish_reason == "stop" or completion.stop_reason == TURN_LIMIT
        if not ended_by_model or not self.calls_left:
            return End()
        self.calls_left -= 1
        call = next((call for call in function_calls(completion.text) if isinstance(call, ParsedCall)), None)
        self.name = call.name if call else None
        if not self.calls_left:
            return Call(as_action(self._last_calls(call)))
        if call is not None:
            return Call(as_action([call]))
        message = self.continue_message + (GIVE_UP if self._was_told_to_continue else "")
        self._was_told_to_continue = True
        return Reject(completion.text, "no_call", message)

    def _last_calls(self, call: ParsedCall | None) -> list[ParsedCall]:
        """Return the calls of the last message, which end the work if it does not end it itself."""
        if call is None:
            return [ParsedCall(FINISH, {"cut": "true"})]
        if call.name == FINISH:
            return [ParsedCall(FINISH, {})]
        return [call, ParsedCall(FINISH, {"cut": "true"})]

    def replies(self, observation: str) -> list[dict[str, Any]]:
        """Return the message that shows an observation."""
        text = observation
        if self.name is not None:
            text = text.strip()
            if len(text) > MAX_CHARS:
                text = f"{text[: MAX_CHARS // 2]}{LEFT_OUT}{text[-MAX_CHARS // 2 :]}"
            text = f"EXECUTION RESULT of [{self.name}]:\n{text}"
        if self.budget_message and self.calls_left == 1:
            text = f"{text}\n\n{LAST}"
        return [{"role": "user", "content": text}]
