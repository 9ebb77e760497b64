"""Pace: in how many seconds will the gate ask for a group? From the run's state, which it reads and does not change."""

from __future__ import annotations

from ..state import RunState


def left_s(state: RunState, deadline: int, period_s: float, now: float) -> float:
    """Until the step at version `deadline` begins, when steps follow each other every `period_s`. Only after a first
    step.

    The next step begins when the one under way has ended; while there is none, now: only what it waits for keeps it.
    Where the learner begins on a batch before it is whole, what it has still to do of that comes first."""
    assert state.step_s is not None and state.work_s is not None, "a step has ended"
    batches, before_s = (deadline - state.version) // state.k, state.work_s - state.step_s
    if not state.stepping:
        return max(0.0, before_s - state.early_s) + batches * period_s
    return max(0.0, state.step_s - (now - state.step_began)) + before_s + (batches - 1) * period_s
