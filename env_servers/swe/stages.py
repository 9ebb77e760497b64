"""Stages: a session starts, an agent works in it, its patch is judged. Each stage has workers of its own, and a queue
before them.

    reset -> start stage -> steps (the server's --workers; how many agents there are is the trainer's concern) ->
    evaluate stage -> reward

They overlap: while patches are judged, other agents work and further sessions start. No stage holds the workers of
another: the step that ends an episode leaves its place before its evaluation waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from env_servers.admission import Admission

UNBOUNDED = 1 << 30
"""Waiting evaluations: no more than there are sessions."""


class Stages:
    def __init__(self, *, start: int, evaluate: int, most_waiting: int) -> None:
        """Workers of the two stages; `most_waiting` starts may wait, more are refused (CapacityFull: the caller tries
        again, or elsewhere)."""
        self.start = Admission(start, most_waiting)
        self.evaluate = Admission(evaluate, UNBOUNDED)

    @property
    def gauges(self) -> Mapping[str, Callable[[], float]]:
        """For /metrics; the agents' own stage is `running` and `waiting` there."""
        return {
            "starting": lambda: self.start.running,
            "starts_waiting": lambda: self.start.waiting,
            "evaluating": lambda: self.evaluate.running,
            "evaluations_waiting": lambda: self.evaluate.waiting,
        }
