"""Messages: a chat in the model's own format. A message calls tools -> run -> a message of role "tool" -> the next ...

    calls = "hermes"   (Qwen)      <tool_call> {"name", "arguments"} </tool_call>
            "llama3"   (Llama 3.1) {"name", "parameters"}, the whole message
            "mistral"              [TOOL_CALLS] [{"name", "arguments"}, ...]
            any other of calls/formats.py
            "text"                 no calls: every message is an action, and the reply is the user's

The action is one JSON list, [{"name": ..., "arguments": {...}}, ...], as in the structured protocols: one step of the
environment however many calls the message has. With `argument` the action is the text of that argument, for example
python_tir's code, and a message may make one call only. A call inside of a thought (<think> ... </think>) does not
count.

A message without a call ends the episode. If one call of a message is malformed, none is run and the reply says what is
wrong. Each message with calls uses up one of `max_calls`; after that, a call ends the episode. With `user` a message
without a call goes to the environment's user, as in the structured protocols; it uses up one of `max_calls` too, and
the reply is the user's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import ConfigError
from ...types import Completion
from . import Call, End, Reject
from .base import USED_UP
from .calls.formats import OF_ONE_TOOL, PARSERS
from .calls.printed import REWRITES
from .calls.reasoning import without_reasoning
from .calls.tool_call import Malformed, ParsedCall
from .structured import as_action, as_message

TEXT = "text"
"""Value of env.options.calls for conversations without calls."""


class Messages:
    """The messages protocol `messages`."""

    def __init__(
        self,
        *,
        max_calls: int,
        budget_message: bool = False,
        calls: str = "hermes",
        argument: str | None = None,
        role: str | None = None,
        stops: Sequence[str] = (),
        silent: str = "",
        user: bool = False,
        print_last: str | None = None,
    ) -> None:
        """Begin a conversation.

        Args:
            max_calls: Messages with calls.
            budget_message: Tell the model when its calls are used up.
            calls: Format of the calls.
            argument: Name of the argument that is the action; None for the list of calls.
            role: Role of the replies. Unset: "tool", or "user" with calls = "text".
            stops: Strings that end a message, besides the model's own end token.
            silent: Shown for an empty reply.
            user: Send a message without a call to the environment's user.
            print_last: How the last value of the program in `argument` is printed (calls/printed.py).

        Raises:
            ConfigError: An option has an unknown value.
        """
        if calls != TEXT and calls not in PARSERS:
            raise ConfigError(
                f"env.options.calls = {calls!r} is not a format of calls. Known:"
                f" {', '.join(sorted({*PARSERS, TEXT}))}. Set it to one of them."
            )
        if role not in (None, "tool", "user"):
            raise ConfigError(f'env.options.role = {role!r} is not a role of replies. Set it to "tool" or "user".')
        if print_last is not None and (print_last not in REWRITES or argument is None):
            raise ConfigError(
                f"env.options.print_last = {print_last!r} rewrites the program in env.options.argument, which is"
                f" {argument!r}. Known: {', '.join(REWRITES)}. Set both, or leave it out."
            )
        self.calls_left = max_calls
        self.relies_on_template = calls != TEXT and calls not in OF_ONE_TOOL
        """True if a call names a function, which the model has to be shown (shown_tools.py)."""
        self.budget_message = budget_message
        self.calls = calls
        self.argument = argument
        self.role = role or ("user" if calls == TEXT else "tool")
        self.stops = tuple(stops)
        self.silent = silent
        self.user = user
        self.print_last = None if print_last is None else REWRITES[print_last]
        self.name = "tool"
        """Name of the function that was called last."""
        self._reply_is_users = False

    def advance(self, completion: Completion) -> Call | Reject | End:
        """Return what the message asks for."""
        if completion.finish_reason != "stop" or not self.calls_left:
            return End()
        if self.calls == TEXT:
            self.calls_left -= 1
            return Call(completion.text.strip())
        parsed = PARSERS[self.calls](without_reasoning(completion.text))
        self._reply_is_users = self.user and not parsed
        if not parsed and not self.user:
            return End()
        self.calls_left -= 1
        if not parsed:
            return Call(as_message(completion.text))
        malformed = next((call for call in parsed if isinstance(call, Malformed)), None)
        calls = [call for call in parsed if isinstance(call, ParsedCall)]
        self.name = calls[0].name if calls else "tool"
        if malformed:
            return Reject(malformed.text, malformed.defect, malformed.detail)
        if self.argument is None:
            return Call(as_action(calls))
        return self._argument_of(calls, self.argument)

    def _argument_of(self, calls: list[ParsedCall], argument: str) -> Call | Reject:
        """Return the action of a message that may make one call with one argument."""
        if len(calls) > 1:
            return Reject(as_action(calls), "bad_arguments", "One call at a time: nothing was run.")
        value = calls[0].arguments.get(argument)
        if not isinstance(value, str):
            return Reject(as_action(calls), "bad_arguments", f'"{argument}" of {calls[0].name} must be a string.')
        return Call(value if self.print_last is None else self.print_last(value))

    def replies(self, observation: str) -> list[dict[str, Any]]:
        """Return the message that shows an observation."""
        text = observation.strip() or self.silent
        if self.budget_message and not self.calls_left:
            text = f"{text}\n\n{USED_UP.strip()}"
        role = "user" if self._reply_is_users else self.role
        message = {"role": role, "content": text}
        if role == "tool":
            message["name"] = self.name
        return [message]
