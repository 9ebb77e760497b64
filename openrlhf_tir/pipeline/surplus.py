"""Surplus: accepted groups that no order of steps can train in time. Their prompts are queued again; only `depth =
auto` makes any.

What goes is the youngest dispatched of those due by the same version, never the last to finish: long answers have no
disadvantage."""

from __future__ import annotations

from .budget import surplus_by_deadline
from .state import RunState


def drop_surplus(state: RunState) -> None:
    """Called when the gate is open, before the batch is taken: what then remains can be trained within S."""
    flights = [state.flights[dispatch] for dispatch in state.replay.dispatches()]
    deadlines = map(state.deadline, flights)
    for deadline, n in surplus_by_deadline(state.version, state.B, deadlines, state.k, state.places).items():
        state.requeue([f.dispatch for f in flights if state.deadline(f) == deadline][-n:], "surplus")


def abandon(state: RunState) -> list[int]:
    """The last step is done: what over-admission left is not needed, all prompts go back. Returns the groups that
    rolled, to be cancelled."""
    state.requeue(state.replay.dispatches(), "end_of_run")
    rolling = sorted(state.rolling)
    state.requeue(rolling, "end_of_run")
    return rolling
