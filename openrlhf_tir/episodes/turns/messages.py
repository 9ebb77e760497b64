"""Messages: a chat in the model's own format. Its message calls tools -> run -> the reply is a message of role "tool"
-> the next one ...

    calls = "hermes"   (Qwen)      <tool_call> {"name", "arguments"} </tool_call>
            "llama3"   (Llama 3.1) {"name", "parameters"}, the whole message
            "mistral"              [TOOL_CALLS] [{"name", "arguments"}, ...]
            any other of calls/formats.py
            "text"                 no call: every message is an action, and the reply is the user's

The action is one JSON list, [{"name": ..., "arguments": {...}}, ...], one step of the environment however many calls
there are, as those of the structured protocols; with `argument` it is that argument's text of a message's one call, as
python_tir's code. A call inside of a thought (<think> ... </think>) is none. A message that calls nothing ends the
episode. If one call of a message is malformed none is run, and
its reply says what is wrong. Each message with calls uses up one of `max_calls`; then a call ends the episode. With
`user` a message that calls nothing goes to the environment's user, as those of the structured protocols do, uses up one
of `max_calls`, too, and the reply is the user's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import ConfigError
from ...types import Completion
from ..calls.formats import PARSERS
from ..calls.printed import REWRITES
from ..calls.reasoning import without_reasoning
from ..calls.tool_call import Malformed, ParsedCall
from . import Call, End, Reject
from .structured import USED_UP, as_action, as_message

TEXT = "text"


class Messages:
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
        """role: of replies; default "tool", of `calls = "text"` "user". stops: texts that end a message, besides the
        model's own end token.

        silent: what is shown of an empty reply. print_last: with `argument`, how a program's last value is printed
        (calls/printed.py).
        """
        if calls != TEXT and calls not in PARSERS:
            raise ConfigError(
                f"env.options.calls = {calls!r} is no format of calls. Known: {', '.join(sorted({*PARSERS, TEXT}))}."
                " Set it to one of them."
            )
        if role not in (None, "tool", "user"):
            raise ConfigError(
                f'env.options.role = {role!r}: a reply is a message of "tool" or of "user". Set it to one of them.'
            )
        if print_last is not None and (print_last not in REWRITES or argument is None):
            raise ConfigError(
                f"env.options.print_last = {print_last!r} rewrites the program in env.options.argument, which is"
                f" {argument!r}. Known: {', '.join(REWRITES)}. Set both, or leave it out."
            )
        self.print_last = REWRITES[print_last] if print_last is not None else None
        self.calls_left, self.budget_message, self.silent = max_calls, budget_message, silent
        self.calls, self.argument, self.role = calls, argument, role or ("user" if calls == TEXT else "tool")
        self.name, self.stops = "tool", tuple(stops)
        self.user, self._to_user = user, False

    def advance(self, completion: Completion) -> Call | Reject | End:
        if completion.finish_reason != "stop" or not self.calls_left:
            return End()
        if self.calls == TEXT:
            self.calls_left -= 1
            return Call(completion.text.strip())
        found = PARSERS[self.calls](without_reasoning(completion.text))
        self._to_user = self.user and not found
        if not found and not self.user:
            return End()
        self.calls_left -= 1
        if not found:
            return Call(as_message(completion.text))
        bad = next((f for f in found if isinstance(f, Malformed)), None)
        calls = [f for f in found if isinstance(f, ParsedCall)]
        self.name = calls[0].name if calls else "tool"
        if bad:
            return Reject(bad.text, bad.defect, bad.detail)
        return Call(as_action(calls)) if self.argument is None else self._one(calls, self.argument)

    def _one(self, calls: list[ParsedCall], argument: str) -> Call | Reject:
        value = calls[0].arguments.get(argument)
        if len(calls) > 1:
            return Reject(as_action(calls), "bad_arguments", "One call at a time: nothing was run.")
        if not isinstance(value, str):
            return Reject(as_action(calls), "bad_arguments", f'"{argument}" of {calls[0].name} must be a string.')
        return Call(value if self.print_last is None else self.print_last(value))

    def replies(self, observation: str) -> list[dict[str, Any]]:
        text = observation.strip() or self.silent
        if self.budget_message and not self.calls_left:
            text = f"{text}\n\n{USED_UP.strip()}"
        role = "user" if self._to_user else self.role
        return [{"role": role, "content": text, **({"name": self.name} if role == "tool" else {})}]
