"""Plain: a response is one text that the model ends itself; nothing in it is a call.

For tasks without a tool, over text prompts as well as over prompts that a chat template rendered.
"""

from __future__ import annotations

from ...types import Completion
from . import End
from .base import TextProtocol


class Plain(TextProtocol):
    """A turn protocol without stop strings and without calls."""

    stops: tuple[str, ...] = ()

    def __init__(self, *, max_calls: int, budget_message: bool = False) -> None:
        """Begin a response. Both arguments are accepted because every protocol is given them; neither has an effect."""

    def advance(self, completion: Completion) -> End:
        """End the episode."""
        return End()

    def insertion(self, observation: str) -> str:
        """Return an observation as it is."""
        return observation
