"""Explain a pipeline that does not move: who waits for what, and for how long. Text for a person; changes nothing.

trainer --buffer--> rolling groups --engine, environment--> outside     (each arrow is an edge that can be blocked)
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
from ..telemetry.heartbeat import clock_text
from .observer import Observer
from .scheduler import InFlightGroup, RolloutScheduler

OUTSIDE = {
    "wait for GPUs": "the engines to leave the shared GPUs, and the learner to be there",
    "accumulate": "the learner ranks, for the gradients of a part of the batch",
    "step": "the learner ranks, for the step",
    "push": "the learner's weights to be written, sent to every engine and proved",
    "checkpoint": "every rank's copy of its state",
    "wait for evaluation": "the engines, for the evaluation, before which they get no other weights",
}
"""Phase -> what the trainer waits for, in phases whose work is done by other processes."""
IN_SHORT = {
    "start": "starting",
    "wait for GPUs": "handing the GPUs over",
    "accumulate": "learner at work on a part of the batch",
    "step": "learner at work",
    "push": "pushing weights to the engines",
    "checkpoint": "copying a checkpoint",
    "wait for evaluation": "waiting for an evaluation",
}
"""The same in a few words, for the console."""


def describe(scheduler: RolloutScheduler, observer: Observer, rollout: Rollout) -> str:
    """Return one clause per edge of the picture above, the blocked one first."""
    now = asyncio.get_running_loop().time()
    rolling = sorted(scheduler.rolling.values(), key=lambda group: group.training_order)
    edge = _edge(scheduler, observer.current_phase, rolling)
    seconds = observer.phase_s
    parts = [f"the trainer waits for {edge} since {seconds:.0f} s, at version {scheduler.version}"]
    if rolling:
        places = Counter(f"{rollout.where(group.key)}, env {group.environment}" for group in rolling)
        parts.append(
            f"{len(rolling)} groups are rolling: " + "; ".join(f"{n} {place}" for place, n in places.most_common())
        )
        longest = min(rolling, key=lambda group: group.started_at)
        parts.append(
            f"the longest is {longest.key} since {now - longest.started_at:.0f} s ({rollout.where(longest.key)}, env"
            f" {longest.environment})"
        )
    else:
        parts.append("no group is rolling")
    parts.append(_admission(scheduler))
    return "; ".join(parts)


def in_short(scheduler: RolloutScheduler, observer: Observer) -> str:
    """Return what the trainer waits for, and for how long, in a few words."""
    since = f"for {clock_text(observer.phase_s)}"
    accepted = len(scheduler.buffered) + len(scheduler.current_batch)
    rolling = len(scheduler.rolling)
    phase = observer.current_phase
    if phase == "wait for groups":
        return f"waiting for groups: {accepted} of {scheduler.rule.batch_groups} accepted"
    if phase == "wait for gate":
        return f"waiting for the staleness gate {since}: the oldest of {rolling} rolling groups come first"
    if phase == "drain":
        return f"draining the engines before a push {since}: {rolling} groups roll"
    return f"{IN_SHORT.get(phase, phase)} {since}"


def _edge(scheduler: RolloutScheduler, phase: str, rolling: list[InFlightGroup]) -> str:
    """Return what the trainer waits for in this phase."""
    if phase == "wait for gate":
        due = min(map(scheduler.rule.due_version, rolling), default=scheduler.version)
        first = [str(group.key) for group in rolling if scheduler.rule.due_version(group) == due]
        return (
            f"the staleness gate: {len(first)} rolling groups must be trained by version {due}, first"
            f" {', '.join(first[:3])}"
        )
    if phase == "drain":
        return f"the engines to drain before a push: {len(rolling)} groups still roll"
    if phase == "wait for groups":
        accumulated = len(scheduler.current_batch)
        begun = f", of which {accumulated} have their gradients" if accumulated else ""
        accepted = len(scheduler.buffered) + accumulated
        return f"groups: {accepted}/{scheduler.rule.batch_groups} are accepted{begun}"
    return OUTSIDE.get(phase, f"'{phase}'")


def _admission(scheduler: RolloutScheduler) -> str:
    """Return a clause that says whether new groups may start, and if not, why."""
    slots = f"{scheduler.slots_taken} hold a slot"
    obstacle = scheduler.dispatch_obstacle()
    if obstacle is None:
        return f"new groups may start ({slots})"
    return f"no new group may start: {slots}, of {scheduler.rule.max_groups} at most; {obstacle.value}"


def stacks() -> str:
    """Return the stack of every asyncio task and every thread of this process, down to the innermost await."""
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
    """Yield (frame, line) of a suspended coroutine and of all that it awaits.

    Task.print_stack shows the outermost frame only.
    """
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
