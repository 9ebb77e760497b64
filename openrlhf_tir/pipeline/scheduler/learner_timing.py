"""How long the learner's steps take: what the depth controller and the fast lane (pipeline/lane) plan with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LearnerTiming:
    """Moving averages of the learner's steps, in seconds. The loop reports durations; no clock is read here.

    Attributes:
        step_s: Moving average of a step's duration including its weight push; None before the first. Parts that were
            accumulated before the step are not included.
        work_s: The same with the accumulated parts: all that a batch takes of the learner's time.
        period_s: Moving average of the seconds between the starts of two steps; None before the second step.
        step_started_at: Time at which the latest step began, in event loop seconds.
        accumulated_s: Seconds that the learner has spent on parts of the current batch.
    """

    step_s: float | None = None
    work_s: float | None = None
    period_s: float | None = None
    step_started_at: float = 0.0
    accumulated_s: float = 0.0
    _latest_period_s: float | None = None

    def step_started(self, now: float) -> None:
        """Record the start of a step.

        Args:
            now: Event loop time in seconds.
        """
        self._latest_period_s = None if self.step_s is None else now - self.step_started_at
        self.step_started_at = now

    def part_accumulated(self, seconds: float) -> None:
        """Record that the learner spent `seconds` on a part of the current batch."""
        self.accumulated_s += seconds

    def step_finished(self, seconds: float) -> None:
        """Record that a step and its push took `seconds`, without the parts that were accumulated before."""
        self.step_s = _average(self.step_s, seconds)
        self.work_s = _average(self.work_s, self.accumulated_s + seconds)
        self.accumulated_s = 0.0
        if self._latest_period_s is not None:
            self.period_s = _average(self.period_s, self._latest_period_s)


def _average(previous: float | None, value: float) -> float:
    """Return the moving average with a gain of one half; the first value as it is."""
    return value if previous is None else 0.5 * (previous + value)
