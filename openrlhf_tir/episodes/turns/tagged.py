"""Tagged turns: what stands between two texts is the action, any text: an answer to a puzzle, a move of a game.

    text <answer>north</answer>  ->  \\n<reply>\\nOpen: south, east.\\n</reply>\\n  ->  text <answer> ...  until the
                                 environment is done

The last opening before the closing counts, so that a reasoning about tags does no harm. A closing without an opening is
told so and uses up a call. When `max_calls` are used up the next closing ends the response, and nothing is run.
"""

from __future__ import annotations

from ...types import Completion
from . import Call, End, Reject

USED_UP = "There are no more tries.\n"


class Tagged:
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
        """`opening` "": the whole segment is the action. `before`, `after`: around a reply."""
        if not closing:
            raise ValueError("closing is '': no text would end an action. Give one, such as '</answer>'.")
        self.calls_left, self.budget_message = max_calls, budget_message
        self.opening, self.closing, self.before, self.after = opening, closing, before, after

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.closing,)

    def advance(self, completion: Completion) -> Call | Reject | End:
        if not self.calls_left or completion.finish_reason != "stop" or completion.stop_reason != self.closing:
            return End()
        self.calls_left -= 1
        text = completion.text.removesuffix(self.closing)
        if self.opening not in text:
            return Reject(completion.text, "unclosed", f"{self.closing} closes nothing: write {self.opening} first.")
        return Call(text[text.rindex(self.opening) + len(self.opening) :].strip() if self.opening else text.strip())

    def insertion(self, observation: str) -> str:
        return f"{self.before}{observation.strip()}{self.after}"

    def too_long(self) -> None:
        return None

    def after_insertion(self) -> str:
        return USED_UP if self.budget_message and not self.calls_left else ""
