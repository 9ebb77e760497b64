"""StageTimes: when an environment's sessions were being started, and when it gave its verdicts: two tracks of the run's
timeline, beside the engines'.

    start      a session's reset, from the first request to its reply, waits for room included
    evaluate   the step that ended an episode with a reward: tests of a patch, the check of a final state

Unions of what ran at once, so that a thousand sessions are a few spans. Stages that take no time are no stages: below
`least_s` nothing is kept."""

from __future__ import annotations

from ..logs.intervals import Interval, union

LEAST_S = 0.1
MOST = 10_000
"""Spans that are kept as they came before they are joined."""


class StageTimes:
    def __init__(self, least_s: float = LEAST_S) -> None:
        self.least_s = least_s
        self._spans: dict[tuple[str, str], list[Interval]] = {}

    def add(self, env: str, stage: str, start: float, end: float) -> None:
        """Epoch seconds."""
        if end - start < self.least_s:
            return
        spans = self._spans.setdefault((env, stage), [])
        spans.append((start, end))
        if len(spans) > MOST:
            spans[:] = union(spans)[-MOST // 2 :]

    def drain(self) -> dict[tuple[str, str], list[Interval]]:
        """(track, name) -> disjoint intervals since the last call."""
        spans, self._spans = self._spans, {}
        return {(f"env/{env}", stage): union(found) for (env, stage), found in spans.items()}
