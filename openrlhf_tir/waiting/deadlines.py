"""Deadlines: no wait on another process without one. A deadline that is missed is a fault, and names its setting.

    await within(Deadline.of(cfg, "timeouts.push_s"), engine.update_weights(...), "The push of version 7 to rollout-2")
    -> DeadlineMissed: The push of version 7 to rollout-2 was not over within timeouts.push_s = 600 s.

tests/unit/house/test_deadlines.py reads the source and finds calls to other processes that do not go through here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from ..errors import DeadlineMissed
from .suspension import wait_first

T = TypeVar("T")


class Deadline(NamedTuple):
    seconds: float
    setting: str
    """What to raise when the wait was too short: a field of the configuration, or a constant of a module."""

    @classmethod
    def of(cls, cfg: Any, setting: str) -> Deadline:
        """The configuration's field of that dotted name, which holds seconds."""
        return cls(attrgetter(setting)(cfg), setting)

    def __add__(self, more: Deadline) -> Deadline:  # type: ignore[override]  # a sum of deadlines, where a tuple would grow
        return Deadline(self.seconds + more.seconds, f"{self.setting} + {more.setting}")

    def __str__(self) -> str:
        return f"{self.setting} = {self.seconds:g} s"


class GivenUp(Exception):
    """`unless` came before the result."""


async def within(deadline: Deadline, call: Awaitable[T], what: str, unless: asyncio.Future[None] | None = None) -> T:
    """The result of `call`, which is cancelled and not waited for any more when the deadline passes: then
    DeadlineMissed is raised. Or, once `unless` is done, GivenUp: many calls may have the same one.

    `what` begins the message: "The push of version 7 to rollout-2".
    """
    task = asyncio.ensure_future(call)
    either: set[asyncio.Future[Any]] = {task} if unless is None else {task, unless}
    try:
        # In awake time: a process that was itself suspended does not take its own absence for the other's.
        done = await wait_first(either, deadline.seconds)
        if task.done():
            return task.result()
        if done:
            raise GivenUp
        raise DeadlineMissed(f"{what} was not over within {deadline}.")
    finally:
        if task.done():
            _retrieved(task)  # it may have failed at the moment at which this call was cancelled
        else:
            task.cancel()
            task.add_done_callback(_retrieved)


def _retrieved(task: asyncio.Future) -> None:
    """What a call that was given up raises later is nobody's any more."""
    if not task.cancelled():
        task.exception()
