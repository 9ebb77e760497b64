"""Deadlines: every wait for another process has one. A missed deadline is a fault that names its setting.

    await within(Deadline.of(cfg, "timeouts.push_s"), engine.update_weights(...), "The push of version 7 to rollout-2")
    -> DeadlineMissed: The push of version 7 to rollout-2 did not finish within timeouts.push_s = 600 s.

tests/unit/house/test_deadlines.py reads the source and finds calls to other processes that do not use this module.
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
    """The longest duration of a wait.

    Attributes:
        seconds: The duration.
        setting: What to raise if it is too short: a setting of the configuration, or a constant of a module.
    """

    seconds: float
    setting: str

    @classmethod
    def of(cls, cfg: Any, setting: str) -> Deadline:
        """Return the deadline that a setting of the configuration gives, in seconds. `setting` is its dotted name."""
        return cls(attrgetter(setting)(cfg), setting)

    def __add__(self, more: Deadline) -> Deadline:  # type: ignore[override]  # a sum of deadlines, where a tuple would grow
        return Deadline(self.seconds + more.seconds, f"{self.setting} + {more.setting}")

    def __str__(self) -> str:
        return f"{self.setting} = {self.seconds:g} s"


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
