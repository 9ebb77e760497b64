"""Base classes of the turn protocols over text."""

from __future__ import annotations

from typing import ClassVar

from ...types import Completion

SILENT = "(no output: print what you want to see)"
"""Shown to the model for code that prints nothing, where the method has no text of its own."""
USED_UP = "Tool call count has been exhausted. You can no longer call the tool.\n"
"""Inserted behind the last result, with env.options.budget_message; ZeroTIR's text."""


class TextProtocol:
    """Defaults of a turn protocol: a long observation is cut at its end, and nothing is added behind one."""

    def too_long(self) -> str | None:
        """Return what replaces an observation that is too long; None to cut its end off."""
        return None

    def after_insertion(self) -> str:
        """Return text to add behind the block that was just inserted."""
        return ""


class StopStringProtocol(TextProtocol):
    """A turn protocol in which one stop string ends every call. Once the calls are used up it is plain text.

    Attributes:
        stop: The stop string.
        used_up: Text behind the last result, with env.options.budget_message.
        calls_left: Calls that the response may still make.
    """

    stop: str
    used_up: ClassVar[str] = ""

    def __init__(self, *, max_calls: int, budget_message: bool = False) -> None:
        """Begin a response with `max_calls` calls. `budget_message` has no effect unless a subclass has `used_up`."""
        self.calls_left = max_calls
        self.budget_message = budget_message

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings of the next segment."""
        return (self.stop,) if self.calls_left else ()

    def stopped_for_call(self, completion: Completion) -> bool:
        """Return True if the segment ended with the stop string."""
        return completion.finish_reason == "stop" and completion.stop_reason == self.stop

    def after_insertion(self) -> str:
        """Return the message that the calls are used up, if they are and it is wanted."""
        return self.used_up if self.budget_message and not self.calls_left else ""
