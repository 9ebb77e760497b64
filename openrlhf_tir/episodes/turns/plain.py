"""Plain turns: a response is one text that the model ends itself; nothing in it is a call.

For tasks without a tool, over prompts that are text as well as over those that a chat template rendered.
"""

from __future__ import annotations

from ...types import Completion
from . import End


class Plain:
    """A turn protocol that never stops a response and never calls."""

    stops: tuple[str, ...] = ()

    def __init__(self, *, max_calls: int, budget_message: bool = False) -> None:
        """Both are taken since every protocol is made with them; there is nothing to count."""

    def advance(self, completion: Completion) -> End:
        return End()

    def insertion(self, observation: str) -> str:
        return observation

    def too_long(self) -> None:
        return None

    def after_insertion(self) -> str:
        return ""
