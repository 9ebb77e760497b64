"""Deadlines: every wait for another process has one. A missed deadline is a fault that names its setting.

    await within(Deadline.of(cfg, "timeouts.push_s"), engine.update_weights(...), "The push of version 7 to rollout-2")
    -> DeadlineMissed: The push of version 7 to rollout-2 did not finish within timeouts.push_s = 600 s.

Five settings decide how long a run waits: env.step_timeout_s, rollout.group_deadline_s, timeouts.push_s,
timeouts.learner_s, timeouts.start_s. Every other wait is a part of one of these, below, or a constant of its module.
A part has a ceiling: who gives slow pushes an hour does not want to learn of a dead actor after half an hour.

tests/unit/house/test_deadlines.py reads the source and finds calls to other processes that do not use this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from math import inf
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from ..errors import DeadlineMissed
from .suspension import wait_first

T = TypeVar("T")
LONGEST_ANSWER_S = 300.0
"""Seconds within which a process that lives answers a small call, however long a push may take."""
LONGEST_BUCKET_S = 60.0
"""Seconds that one bucket of a broadcast may take at most."""
AGENT_S = 600.0
"""Seconds for which an agent may be silent, however short its group's deadline is, unless that is shorter."""


class Deadline(NamedTuple):
    """The longest duration of a wait.

    Attributes:
        seconds: The duration.
        setting: What to raise if it is too short: a setting of the configuration, or a constant of a module.
    """

    seconds: float
    setting: str

    @classmethod
    def of(cls, cfg: Any, setting: str, *, parts: int = 1, at_most_s: float = inf) -> Deadline:
        """Return the deadline that a setting of the configuration gives.

        Args:
            cfg: The configuration.
            setting: Dotted name of a setting in seconds.
            parts: The deadline is the setting divided by this.
            at_most_s: The ceiling of the deadline, in seconds.
        """
        seconds = attrgetter(setting)(cfg) / parts
        part = f"{setting} / {parts}" if parts > 1 else setting
        return cls(seconds, part) if seconds <= at_most_s else cls(at_most_s, f"min({part}, {at_most_s:g} s)")

    def __add__(self, more: Deadline) -> Deadline:  # type: ignore[override]  # a sum of deadlines, where a tuple would grow
        return Deadline(self.seconds + more.seconds, f"{self.setting} + {more.setting}")

    def __str__(self) -> str:
        return f"{self.setting} = {self.seconds:g} s"


def answer_deadline(cfg: Any) -> Deadline:
    """Return the deadline of a small call to another process, whose silence beyond it means that the process is lost.

    Half a push: a process that loads weights for that long without answering would miss the push as well.
    """
    return Deadline.of(cfg, "timeouts.push_s", parts=2, at_most_s=LONGEST_ANSWER_S)


def node_lock_deadline(cfg: Any) -> Deadline:
    """Return how long an engine waits for its turn at its node's copy of the pushed weights (weights/node_copy.py).

    A quarter of a push: an engine whose turn does not come then checks the pushed file by itself, and has the rest of
    the time for that, for loading and for the canary.
    """
    return Deadline.of(cfg, "timeouts.push_s", parts=4)


def broadcast_deadline(cfg: Any) -> Deadline:
    """Return the deadline of one bucket of a broadcast, and of the meeting of its members.

    A tenth of a push, so that a torn broadcast is repeated without its faulty member before the push is late.
    """
    return Deadline.of(cfg, "timeouts.push_s", parts=10, at_most_s=LONGEST_BUCKET_S)


def agent_deadline(cfg: Any, *more: Deadline) -> Deadline:
    """Return how long an agent may be silent: a sixth of what its group may take, ten minutes for an hour.

    An agent that runs tests says nothing meanwhile, so that a shorter group leaves it AGENT_S all the same, and never
    less than a call of a tool may take.

    Args:
        cfg: The configuration.
        more: What else the silence must be as long as, unless its group's deadline is shorter.
    """
    group = Deadline.of(cfg, "rollout.group_deadline_s")
    sixth = Deadline.of(cfg, "rollout.group_deadline_s", parts=6)
    tool = Deadline.of(cfg, "env.step_timeout_s")
    silence = longest(sixth, Deadline(AGENT_S, "deadlines.AGENT_S"), tool, *more)
    return silence if silence.seconds < group.seconds else group


def longest(*deadlines: Deadline) -> Deadline:
    """Return the longest deadline, of equal ones the first."""
    return max(deadlines, key=lambda deadline: deadline.seconds)


class GivenUp(Exception):
    """Raised when `unless` completes before the call."""


async def within(deadline: Deadline, call: Awaitable[T], what: str, unless: asyncio.Future[None] | None = None) -> T:
    """Return the result of a call. If the deadline passes, the call is cancelled and not waited for.

    Args:
        deadline: The longest wait.
        call: The call.
        what: What the call does, for the message: "The push of version 7 to rollout-2".
        unless: A future that ends the wait; several calls may share it.

    Raises:
        DeadlineMissed: The deadline passed.
        GivenUp: `unless` completed first.
    """
    task = asyncio.ensure_future(call)
    futures: set[asyncio.Future[Any]] = {task} if unless is None else {task, unless}
    try:
        # In awake time: a process that was itself suspended must not take its own absence for the other's.
        done = await wait_first(futures, deadline.seconds)
        if task.done():
            return task.result()
        if done:
            raise GivenUp
        raise DeadlineMissed(f"{what} did not finish within {deadline}.")
    finally:
        if task.done():
            _retrieve_exception(task)  # it may have failed at the moment at which this call was cancelled
        else:
            task.cancel()
            task.add_done_callback(_retrieve_exception)


def _retrieve_exception(task: asyncio.Future) -> None:
    """Retrieve the exception of an abandoned call, so that asyncio does not log it as never retrieved."""
    if not task.cancelled():
        task.exception()
