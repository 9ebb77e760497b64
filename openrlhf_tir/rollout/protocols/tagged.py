"""Tagged: the text between two tags is the action, whatever it is: the answer to a puzzle, a move of a game.

    text <answer>north</answer>  ->  \\n<reply>\\nOpen: south, east.\\n</reply>\\n  ->  text <answer> ...  until the
                                 environment is done

The last opening tag before the closing one counts, so reasoning about tags does no harm. A closing tag without an
opening one uses up a call, and the model is told so. When the calls are used up, the next closing tag ends the
response.
"""

from __future__ import annotations

from ...types import Completion
from . import Call, End, Reject
from .base import TextProtocol

USED_UP = "There are no more tries.\n"
"""Inserted behind the reply to the last call, with env.options.budget_message."""


class Tagged(TextProtocol):
    """The turn protocol `tagged`."""

    relies_on_template = False  # a call names no function

    def __init__(
        self,
        *,
        max_calls: int,
        budget_message: bool = False,
        opening: str = "<answer>",
        closing: str = "</answer>",
        before: str = "\n<reply>\n",
        after: str = "\n</reply>\n",
    ) -> None:
        """Begin a response.

        Args:
            max_calls: Calls that the response may make.
            budget_message: Tell the model when its calls are used up.
            opening: Text before an action; "" to take the whole segment.
            closing: Text behind an action.
            before: Text before a reply.
            after: Text behind a reply.

        Raises:
            ValueError: `closing` is empty.
        """
        if not closing:
            raise ValueError("closing is '', so no text would end an action. Give one, such as '</answer>'.")
        self.calls_left = max_calls
        self.budget_message = budget_message
        self.opening = opening
        self.closing = closing
        self.before = before
        self.after = after

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings of the next segment."""
        return (self.closing,)

    def advance(self, completion: Completion) -> Call | Reject | End:
        """Return the action of the segment."""
        if not self.calls_left or completion.finish_reason != "stop" or completion.stop_reason != self.closing:
            return End()
        self.calls_left -= 1
        text = completion.text.removesuffix(self.closing)
        if not self.opening:
            return Call(text.strip())
        if self.opening not in text:
            return Reject(completion.text, "unclosed", f"{self.closing} closes nothing: write {self.opening} first.")
        return Call(text.rpartition(self.opening)[2].strip())

    def insertion(self, observation: str) -> str:
        """Return the block that shows a reply."""
        return f"{self.before}{observation.strip()}{self.after}"

    def after_insertion(self) -> str:
        """Return the message that the calls are used up, if they are and it is wanted."""
        return USED_UP if self.budget_message and not self.calls_left else ""
