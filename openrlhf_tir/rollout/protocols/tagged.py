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
from .base import StopStringProtocol


class Tagged(StopStringProtocol):
    """The turn protocol `tagged`."""

    used_up = "There are no more tries.\n"
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
        super().__init__(max_calls=max_calls, budget_message=budget_message)
        self.opening = opening
        self.stop = closing
        self.before = before
        self.after = after

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop string, also once the calls are used up."""
        return (self.stop,)

    def advance(self, completion: Completion) -> Call | Reject | End:
        """Return the action of the segment."""
        if not self.calls_left or not self.stopped_for_call(completion):
            return End()
        self.calls_left -= 1
        text = completion.text.removesuffix(self.stop)
        if not self.opening:
            return Call(text.strip())
        if self.opening not in text:
            return Reject(completion.text, "unclosed", f"{self.stop} closes nothing: write {self.opening} first.")
        return Call(text.rpartition(self.opening)[2].strip())

    def insertion(self, observation: str) -> str:
        """Return the block that shows a reply."""
        return f"{self.before}{observation.strip()}{self.after}"
