"""Surplus: accepted groups that no order of steps can train in time. Their prompts are queued again; only `depth = auto` makes any.

What goes is the youngest dispatched of those due by the same version, never the last to finish: long answers have no disadvantage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .budget import surplus_by_deadline

if TYPE_CHECKING:
    from .loop import Pipeline


def drop_surplus(p: Pipeline) -> None:
    """Called when the gate is open, before the batch is taken: what then remains can be trained within S."""
    flights = [p.flights[dispatch] for dispatch in p.replay.dispatches()]
    for deadline, n in surplus_by_deadline(p.version, p.B, (f.version + p.S for f in flights)).items():
        _requeue(p, [f.dispatch for f in flights if f.version + p.S == deadline][-n:], "surplus")


def abandon(p: Pipeline) -> None:
    """The last step is done: what over-admission left is not needed. Rolling groups are cancelled, all prompts go back."""
    _requeue(p, p.replay.dispatches(), "end_of_run")
    for dispatch in sorted(p.flights):
        flight = p.flights.pop(dispatch)
        p.rolls.pop(dispatch).cancel()
        p.source.requeue(flight, "end_of_run", counts=False)
        p.observer.group("requeued", None, "end_of_run")
        p.budget.move("rolling", "requeued")


def _requeue(p: Pipeline, dispatches: list[int], reason: str) -> None:
    """Buffered groups give up their slots; their prompts keep their places in line."""
    for dispatch in dispatches:
        p.replay.remove(dispatch)
        p.source.requeue(p.flights.pop(dispatch), reason, counts=False)
        p.observer.group("requeued", None, reason)
        p.budget.move("buffered", "surplus" if reason == "surplus" else "requeued")
