"""Search-R1 turns: text -> <search> query </search> -> retrieve -> <information> block -> text ... -> <answer>.

Source: search_r1/llm_agent/generation.py (a14dc3a). There a turn is sampled to its end and cut after </search>, or else </answer>;
here both stop it, so nothing is sampled in vain: what would follow an answer, a search included, is never written. As there, a turn's first
complete tag decides, a turn without one is told so and counts, one that is cut at `max_turn_tokens` (the method's: 500) too, and after
`max_calls` turns a last segment is sampled whose search is not run. Its cut of long results would lose the closing tag; here the passages
are cut inside of it.
"""

from __future__ import annotations

import re

from ...types import Completion
from . import TURN_LIMIT, Call, End, GoOn

STOPS = ("</search>", "</answer>")
INVALID = (
    "\nMy previous action is invalid. If I want to search, I should put the query between <search> and </search>. If I want to give the "
    "final answer, I should put the answer between <answer> and </answer>. Let me try again.\n"
)
_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)


class SearchR1:
    stops = STOPS

    def __init__(self, *, max_calls: int, budget_message: bool = False, max_turn_tokens: int | None = None) -> None:
        """The method tells nothing about a used-up budget: `budget_message` changes nothing."""
        self.turns_left, self.max_turn_tokens = max_calls, max_turn_tokens

    def advance(self, completion: Completion) -> Call | GoOn | End:
        action = _ACTION.search(completion.text)
        over = completion.finish_reason != "stop" and completion.stop_reason != TURN_LIMIT
        if over or self.turns_left == 0 or (action and action[1] == "answer"):
            return End()
        self.turns_left -= 1
        return Call(action[2].strip()) if action else GoOn(INVALID)

    def insertion(self, observation: str) -> str:
        return f"\n\n<information>{observation.strip()}</information>\n\n"

    def too_long(self) -> None:
        return None

    def after_insertion(self) -> str:
        return ""
