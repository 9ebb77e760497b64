"""Diagnosis: a pipeline that does not move -> who waits for what, how long, and on whom. Text for a person; changes
nothing.

trainer --replay--> rolling groups --actor, env--> outside        (each arrow is an edge that can be blocked)
        --gate----> the groups that must be trained first
        --drain---> rolling groups
        --step, push, checkpoint, evaluation--> learner, engines
"""

from __future__ import annotations

import asyncio
import io
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from types import FrameType

from ..ports import Rollout
from ..types import GroupState
from .observer import Observer
from .source import Flight
from .state import RunState

OUTSIDE = {
    "turn": "the engines to leave the shared GPUs, and the learner to be there",
    "accumulate": "the learner ranks, for the gradients of a part of the batch",
    "step": "the learner ranks, for the step",
    "push": "the learner's weights to be written, sent to every engine and proved",
    "checkpoint": "every rank's copy of its state",
    "wait for evaluation": "the engines, for the evaluation, before which they get no other weights",
}
"""What the trainer waits for in the phases that the controller only looks at from outside."""


def describe(state: RunState, observer: Observer, rollout: Rollout) -> str:
    """One sentence per edge, the blocked one first."""
    now = asyncio.get_running_loop().time()
    rolling = sorted(state.rolling.values(), key=lambda f: f.place)
    parts = [
        f"the trainer waits for {_edge(state, observer.now, rolling)} since {now - observer.since:.0f} s, at version"
        f" {state.version}"
    ]
    if rolling:
        spread = Counter(f"{rollout.where(f.key)}, env {f.env}" for f in rolling)
        parts.append(
            f"{len(rolling)} groups are rolling: " + "; ".join(f"{n} {where}" for where, n in spread.most_common())
        )
        longest = min(rolling, key=lambda f: f.started_at)
        parts.append(
            f"the longest is {longest.key} since {now - longest.started_at:.0f} s ({rollout.where(longest.key)}, env"
            f" {longest.env})"
        )
    else:
        parts.append("no group is rolling")
    parts.append(_admission(state))
    return "; ".join(parts)


def _edge(state: RunState, phase: str, rolling: list[Flight]) -> str:
    if phase == "wait for gate":
        due = min(map(state.deadline, rolling), default=state.version)
        first = [str(f.key) for f in rolling if state.deadline(f) == due]
        return (
            f"the staleness gate: {len(first)} rolling groups must be trained by version {due}, first"
            f" {', '.join(first[:3])}"
        )
    if phase == "drain":
        return f"the engines to drain before a push: {len(rolling)} groups still roll"
    if phase == "wait for replay":
        begun = f", of which {len(state.in_hand)} have their gradients" if state.in_hand else ""
        return f"replay: {len(state.replay) + len(state.in_hand)}/{state.B} groups are there{begun}"
    return OUTSIDE.get(phase, f"'{phase}'")


def _admission(state: RunState) -> str:
    budget = state.budget
    held = budget.pending + budget.states[GroupState.TRAINING]
    if not state.source.ready:
        return "no prompt is left to issue"
    if budget.admits():
        return f"new groups may start ({held} hold a slot)"
    why = "" if held >= budget.limit else "; pipeline.depth wants no more under way"
    return f"no new group may start: {held} hold a slot, of {budget.limit} at most{why}"


def stacks() -> str:
    """Where every asyncio task and every thread of this process is, down to the innermost await."""
    out = io.StringIO()
    for task in sorted(asyncio.all_tasks(), key=lambda t: t.get_name()):
        out.write(f"task {task.get_name()!r}\n")
        for frame, line in _awaits(task.get_coro()):
            out.writelines(
                traceback.format_list([traceback.FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_name)])
            )
    for thread, frame in sys._current_frames().items():
        out.write(f"thread {thread}\n")
        out.writelines(traceback.format_stack(frame))
    return out.getvalue()


def _awaits(coroutine: object) -> Iterator[tuple[FrameType, int]]:
    """(frame, line) of a suspended coroutine and of all it awaits. Task.print_stack shows the outermost only."""
    while coroutine is not None:
        frame = (
            getattr(coroutine, "cr_frame", None)
            or getattr(coroutine, "ag_frame", None)
            or getattr(coroutine, "gi_frame", None)
        )
        if frame is None:
            return
        yield frame, frame.f_lineno
        coroutine = (
            getattr(coroutine, "cr_await", None)
            or getattr(coroutine, "ag_await", None)
            or getattr(coroutine, "gi_yieldfrom", None)
        )
