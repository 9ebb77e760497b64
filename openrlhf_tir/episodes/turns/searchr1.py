"""Search-R1 turns: text -> <search> query </search> -> retrieve -> <information> block -> text ... -> <answer>.

Source: search_r1/llm_agent/generation.py (a14dc3a). There a turn is sampled to its end and cut after </search>, or else
</answer>; here both stop it, so nothing is sampled in vain: what would follow an answer, a search included, is never
written. As there, a turn's first complete tag decides, a turn without one is told so and counts, one that is cut at
`max_turn_tokens` (the method's: 500) too, and after `max_calls` turns a last segment is sampled whose search is not
run. Its cut of long results would lose the closing tag; here the passages are cut inside of it.

With `pages` (not in Search-R1; follow-ups have it as <access> of a URL, or a browser's open) a document that a search
found can be read:

    <open> 2 </open>  or  <open> 2 page 3 </open>  ->  <document> block, a page of it

`max_context_tokens` is its cut of a long dialogue (4,096): a turn is sampled from the last so many tokens. What is
trained is the whole response, so the learner sees more than the model did; the recipe ends the response there."""

from __future__ import annotations

import json
import re

from ...types import Completion
from . import TURN_LIMIT, Call, End, GoOn

STOPS = ("</search>", "</answer>")
OPEN = "</open>"
INVALID = (
    "\nMy previous action is invalid. If I want to search, I should put the query between <search> and </search>. If I"
    " want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again.\n"
)
INVALID_WITH_PAGES = INVALID.replace(
    "If I want to give",
    "If I want to read a document, I should put its number between <open> and </open>. If I want to give",
)
_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)
_ACTION_WITH_PAGES = re.compile(r"<(search|open|answer)>(.*?)</\1>", re.DOTALL)


class SearchR1:
    def __init__(
        self,
        *,
        max_calls: int,
        budget_message: bool = False,
        max_turn_tokens: int | None = None,
        max_context_tokens: int | None = None,
        pages: bool = False,
    ) -> None:
        """The method tells nothing about a used-up budget: `budget_message` changes nothing."""
        for name, value in ("max_turn_tokens", max_turn_tokens), ("max_context_tokens", max_context_tokens):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}. Give 1 or more, or leave it out.")
        self.turns_left, self.max_turn_tokens = max_calls, max_turn_tokens
        self.max_context_tokens, self.pages = max_context_tokens, pages
        self._block = "information"

    @property
    def stops(self) -> tuple[str, ...]:
        return (*STOPS, OPEN) if self.pages else STOPS

    def advance(self, completion: Completion) -> Call | GoOn | End:
        action = (_ACTION_WITH_PAGES if self.pages else _ACTION).search(completion.text)
        over = completion.finish_reason != "stop" and completion.stop_reason != TURN_LIMIT
        if over or self.turns_left == 0 or (action and action[1] == "answer"):
            return End()
        self.turns_left -= 1
        if not action:
            return GoOn(INVALID_WITH_PAGES if self.pages else INVALID)
        self._block, asked = (
            ("document", action[2].strip()) if action[1] == "open" else ("information", action[2].strip())
        )
        return Call(json.dumps({"open": asked}) if action[1] == "open" else asked)

    def insertion(self, observation: str) -> str:
        return f"\n\n<{self._block}>{observation.strip()}</{self._block}>\n\n"

    def too_long(self) -> None:
        return None

    def after_insertion(self) -> str:
        return ""
