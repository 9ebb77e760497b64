"""Pace: in how many seconds will the gate ask for a group? Reads the scheduler's state and does not change it."""

from __future__ import annotations

from ..scheduler import RolloutScheduler


def left_s(scheduler: RolloutScheduler, due_version: int, period_s: float, now: float) -> float:
    """Return the seconds until the step at version `due_version` begins. Only after a first step.

    The next step begins when the one under way has ended, or now if there is none: only what it waits for keeps it.
    Where the learner begins on a batch before it is complete, what it has still to do of that comes first.

    Args:
        scheduler: The run's scheduler.
        due_version: Last version at which the batch of the group may begin (scheduler/staleness.py).
        period_s: Seconds between the starts of two steps.
        now: Event loop time in seconds.
    """
    timing = scheduler.timing
    assert timing.step_s is not None and timing.work_s is not None, "a step has ended"
    batches = (due_version - scheduler.version) // scheduler.rule.updates_per_batch
    before_step_s = timing.work_s - timing.step_s
    if not scheduler.stepping:
        return max(0.0, before_step_s - timing.accumulated_s) + batches * period_s
    rest_of_step_s = max(0.0, timing.step_s - (now - timing.step_started_at))
    return rest_of_step_s + before_step_s + (batches - 1) * period_s
