"""Pace: in how many seconds will the gate ask for a group? From the run's state, which it reads and does not change."""

from __future__ import annotations

from ..state import RunState


def left_s(state: RunState, deadline: int, period_s: float, now: float) -> float:
    """Until the step at version `deadline` begins, when steps follow each other every `period_s`. Only after a first
    step.

    The next step begins when the one under way has ended; while there is none, now: only what it waits for keeps it."""
    assert state.step_s is not None, "a step has ended"
    batches = (deadline - state.version) // state.k
    if not state.stepping:
        return batches * period_s
    return max(0.0, state.step_s - (now - state.step_began)) + (batches - 1) * period_s
