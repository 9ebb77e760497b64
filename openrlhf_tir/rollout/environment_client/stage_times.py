"""When an environment's sessions were being started and evaluated: two tracks of the run's timeline.

    start      a session's reset, from the first request to its reply, with the wait for room
    evaluate   the step that ended an episode with a reward: tests of a patch, the check of a final state

Overlapping intervals are joined, so that a thousand sessions are a few spans. Stages shorter than `min_s` are dropped.
"""

from __future__ import annotations

from ...telemetry.intervals import Interval, union

MIN_S = 0.1
MAX_SPANS = 10_000
"""Spans of a stage that are kept before they are joined."""


class StageTimes:
    """Collects the stages of the sessions of one client."""

    def __init__(self, min_s: float = MIN_S) -> None:
        """Create an empty collection that drops stages shorter than `min_s` seconds."""
        self.min_s = min_s
        self._spans: dict[tuple[str, str], list[Interval]] = {}

    def add(self, env: str, stage: str, start: float, end: float) -> None:
        """Add a stage from `start` to `end`, in seconds since the epoch."""
        if end - start < self.min_s:
            return
        spans = self._spans.setdefault((env, stage), [])
        spans.append((start, end))
        if len(spans) > MAX_SPANS:
            spans[:] = union(spans)[-MAX_SPANS // 2 :]

    def drain(self) -> dict[tuple[str, str], list[Interval]]:
        """Return the disjoint intervals since the last call: (track, stage) -> intervals."""
        collected = self._spans
        self._spans = {}
        return {(f"env/{env}", stage): union(spans) for (env, stage), spans in collected.items()}
