"""Search-R1: text -> <search> query </search> -> retrieve -> <information> block -> text ... -> <answer>.

Source: search_r1/llm_agent/generation.py (a14dc3a). There a turn is sampled to its end and cut after </search>, or else
after </answer>. Here both stop the turn, so what would follow an answer, a search included, is never sampled. As there,
the first complete tag of a turn decides. A turn without one counts and the model is told so; so does a turn that is cut
at `max_turn_tokens` (500 in the method). After `max_calls` turns one last segment is sampled, whose search is not run.
The method's cut of long results would lose the closing tag; here the passages inside of it are cut.

With `pages` (not in Search-R1; later methods have it as <access> of a URL, or as a browser's open) a document that a
search found can be read page by page:

    <open> 2 </open>  or  <open> 2 page 3 </open>  ->  <document> block with one page

`max_context_tokens` is the method's cut of a long dialogue (4,096): a turn is sampled from that many last tokens. The
whole response is trained, so the learner sees more than the model did; the recipe ends the response there.
"""

from __future__ import annotations

import json
import re

from ...types import Completion
from . import TURN_LIMIT, Call, End, GoOn
from .base import TextProtocol

STOPS = ("</search>", "</answer>")
STOP_OF_PAGE = "</open>"
INVALID = (
    "\nMy previous action is invalid. If I want to search, I should put the query between <search> and </search>. If I"
    " want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again.\n"
)
"""Inserted after a turn without a complete tag; the method's text."""
INVALID_WITH_PAGES = INVALID.replace(
    "If I want to give",
    "If I want to read a document, I should put its number between <open> and </open>. If I want to give",
)
_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)
_ACTION_WITH_PAGES = re.compile(r"<(search|open|answer)>(.*?)</\1>", re.DOTALL)


class SearchR1(TextProtocol):
    """Search-R1's turn protocol. The method says nothing about a used-up budget: `budget_message` has no effect."""

    relies_on_template = False  # a call names no function

    def __init__(
        self,
        *,
        max_calls: int,
        budget_message: bool = False,
        max_turn_tokens: int | None = None,
        max_context_tokens: int | None = None,
        pages: bool = False,
    ) -> None:
        """Begin a response.

        Args:
            max_calls: Turns of the model, with or without a search.
            budget_message: No effect.
            max_turn_tokens: Tokens of one turn; None for no limit but the response's.
            max_context_tokens: Last tokens of prompt and response that a turn is sampled from; None for all.
            pages: Let the model open documents that a search found.

        Raises:
            ValueError: A number of tokens is below 1.
        """
        for name, value in ("max_turn_tokens", max_turn_tokens), ("max_context_tokens", max_context_tokens):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}. Give 1 or more, or leave it out.")
        self.turns_left = max_calls
        self.max_turn_tokens = max_turn_tokens
        self.max_context_tokens = max_context_tokens
        self.pages = pages
        self._block = "information"

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings of the next segment."""
        return (*STOPS, STOP_OF_PAGE) if self.pages else STOPS

    def advance(self, completion: Completion) -> Call | GoOn | End:
        """Return what the turn asks for."""
        match = (_ACTION_WITH_PAGES if self.pages else _ACTION).search(completion.text)
        ended_by_model = completion.finish_reason == "stop" or completion.stop_reason == TURN_LIMIT
        if not ended_by_model or self.turns_left == 0:
            return End()
        if match and match[1] == "answer":
            return End()
        self.turns_left -= 1
        if not match:
            return GoOn(INVALID_WITH_PAGES if self.pages else INVALID)
        argument = match[2].strip()
        if match[1] == "open":
            self._block = "document"
            return Call(json.dumps({"open": argument}))
        self._block = "information"
        return Call(argument)

    def insertion(self, observation: str) -> str:
        """Return the block that shows an observation."""
        return f"\n\n<{self._block}>{observation.strip()}</{self._block}>\n\n"
