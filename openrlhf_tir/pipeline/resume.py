"""The one cut: what a checkpoint takes from a running pipeline, and how a resume puts it back.

`save` reads the controller's state without awaiting, so slots, flights, replay and ledger line belong together. What was buffered
stays buffered; what was rolling is issued again as a new attempt; whatever happened after the cut is rolled back in the ledger.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from ..types import BatchItem, GroupKey
from .source import Flight

if TYPE_CHECKING:
    from .loop import Pipeline


async def save(p: Pipeline) -> None:
    """Write and commit a checkpoint. Called between steps, when nothing is in training."""
    with p.observer.phase("checkpoint", p.version):
        items = p.replay.items()
        waiting = {dispatch for dispatch, _ in items}
        upto = p.ledger.lines
        state = {
            "version": p.version,
            "max_staleness": p.S,
            "batch_size": p.B,
            "world_size": p.cfg.actor.world_size,
            "ledger_lines": upto,
            "source": p.source.state(),
            "rolling": [asdict(f) for d, f in p.flights.items() if d not in waiting],
        }
        flights = [p.flights[dispatch] for dispatch, _ in items]
        p.ledger.sync()
        groups = await p.rollout.fetch([item.payload for _, item in items])
        buffered = [(f, item.meta, group) for f, (_, item), group in zip(flights, items, groups, strict=True)]
        await p.checkpoints.save(p.version, state, buffered, p.learner)
        p.ledger.committed(p.version, upto)


async def restore(p: Pipeline) -> None:
    """Back to the last checkpoint's cut, or to the beginning if none was committed."""
    path = p.checkpoints.latest()
    if path is None:
        p.ledger.rolled_back(0, [])
        p.observer.rewind(0)
        return
    state, buffered = p.checkpoints.read(path)
    p.version = await p.learner.load(path / "learner")
    p.source.restore(state["source"])
    rolling = [Flight(**{**f, "key": GroupKey(*f["key"])}) for f in state["rolling"]]
    p.ledger.rolled_back(state["ledger_lines"], [f.key for f in rolling] + [f.key for f, _, _ in buffered])
    for flight in rolling:
        p.source.requeue(flight, "resume", counts=False)
    for flight, meta, group in buffered:
        p.flights[flight.dispatch] = flight
        p.replay.add(flight.dispatch, BatchItem(meta, await p.rollout.store(group)))
        p.budget.enter("buffered")
    p.observer.rewind(p.version)
