"""The one cut: what a checkpoint takes from a running pipeline, and how a resume puts it back.

`save` reads the controller's state and sends the learner its call without awaiting in between, so slots, flights, replay, ledger line and
weights belong together. What was buffered stays buffered; what was rolling is issued again as a new attempt; whatever happened after
the cut is rolled back in the ledger.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from ..types import BatchItem, GroupKey
from .source import Flight

if TYPE_CHECKING:
    from .loop import Pipeline


async def save(p: Pipeline, score: float | None = None) -> None:
    """Begin a checkpoint; the learner may step when this returns, `p.committing` ends when it is safe. `score`: the best evaluation so far.

    Called when no step is under way. One checkpoint at a time: host memory holds at most one copy of the learner's state.
    """
    with p.observer.phase("checkpoint", p.version):
        if p.committing:
            await p.committing
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
        buffered = [(p.flights[dispatch], item) for dispatch, item in items]
        p.saved = p.cut
        await p.checkpoints.take(p.version, p.learner)
    p.committing = p.tasks.create_task(_commit(p, state, buffered, score), name=f"commit {state['version']}")


async def _commit(p: Pipeline, state: dict, buffered: list[tuple[Flight, BatchItem]], score: float | None) -> None:
    """In the background: a failure ends the run, because its task group sees it."""
    start = time.time()
    groups = await p.rollout.fetch([item.payload for _, item in buffered])
    await asyncio.to_thread(p.ledger.sync)  # what the checkpoint counts on must not be younger than it
    rows = [(flight, item.meta, group) for (flight, item), group in zip(buffered, groups, strict=True)]
    await p.checkpoints.commit(state["version"], state, rows, p.learner, score)
    p.ledger.committed(state["version"], state["ledger_lines"])
    await asyncio.to_thread(p.ledger.sync)
    p.observer.spans("ckpt", [(start, time.time())], f"write {state['version']}")


async def rescue(p: Pipeline) -> str:
    """A checkpoint of a run that stalled, if the learner is idle; says what became of it."""
    if p.observer.now in ("step", "checkpoint"):
        return "The learner is in the middle of a step or a checkpoint; the checkpoint before counts."
    await save(p)
    await p.committing
    return f"Version {p.version} was saved."


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
        p.replay.add(flight.place, BatchItem(meta, await p.rollout.store(group)))
        p.budget.enter("buffered")
        p.observer.selection.restored(meta)
    p.observer.rewind(p.version)
