"""The stages of an episode: a session starts, an agent works in it, its patch is judged. Each stage has its own workers
and queue.

    reset -> start stage -> steps (the server's --workers; the trainer decides how many agents there are) ->
    evaluate stage -> reward

They overlap: while patches are judged, other agents work and further sessions start. No stage holds the workers of
another: the step that ends an episode gives its slot back before its evaluation waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from env_servers.admission import Admission

UNBOUNDED = 1 << 30
"""Evaluations that may wait: in fact no more than there are sessions."""


class Stages:
    """The start and the evaluate stage of a server."""

    def __init__(self, *, start: int, evaluate: int, max_waiting_starts: int) -> None:
        """Create the stages.

        Args:
            start: Sessions that start at once.
            evaluate: Patches that are judged at once.
            max_waiting_starts: Starts that may wait. More are refused with CapacityFull: the caller tries again, or
                elsewhere.
        """
        self.start = Admission(start, max_waiting_starts)
        self.evaluate = Admission(evaluate, UNBOUNDED)

    @property
    def gauges(self) -> Mapping[str, Callable[[], float]]:
        """Functions that /metrics reads. The agents' own stage is `running` and `waiting` there."""
        return {
            "starting": lambda: self.start.running,
            "starts_waiting": lambda: self.start.waiting,
            "evaluating": lambda: self.evaluate.running,
            "evaluations_waiting": lambda: self.evaluate.waiting,
        }
