"""Workers: (function, args) -> its result, computed in another process with a deadline and a memory limit.

A call that misses its deadline costs the deadline and its worker. A worker that dies is replaced and the call tried once more. Started
at the first call, so that a pool nobody needs costs nothing.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
from collections.abc import Callable
from typing import Any

from ..errors import VerifierError
from . import symbolic

WORKER_MEMORY = 4 << 30
"""Bytes of address space of a worker: 9^(9^9) ends in MemoryError there, instead of taking the machine along."""
ATTEMPTS = 2


class Late(VerifierError):
    """A worker missed its deadline."""


class Workers:
    def __init__(self, count: int, deadline_s: float, *, deadline_name: str = "the deadline", count_name: str = "workers") -> None:
        """At most `count` calls at once, each within `deadline_s` of its start. The names are those of the settings, for messages."""
        self.count, self.deadline_s = count, deadline_s
        self._deadline_name, self._count_name = deadline_name, count_name
        self._pool = None

    @property
    def started(self) -> bool:
        return self._pool is not None

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """`function(*args)`. Late when it misses its deadline (the worker is killed), VerifierError when workers die twice.

        Cancelled: the call is taken back, or its worker killed.
        """
        from pebble import ProcessExpired

        for _ in range(ATTEMPTS):
            try:
                return await asyncio.wrap_future(self._started().schedule(function, args=args, timeout=self.deadline_s))
            except ProcessExpired as e:
                death = e
            except TimeoutError as e:
                raise Late(f"{function.__name__} missed {self._deadline_name} = {self.deadline_s} s. Raise it, or make the check quicker.") from e
        raise VerifierError(
            f"The worker died {ATTEMPTS} times in {function.__name__} ({death}). See its exit code; {self._count_name} or memory may be too small."
        )

    async def warm(self) -> None:
        """Have every worker ready to check, so that no first call pays for it."""
        futures = [self._started().schedule(symbolic.warm) for _ in range(self.count)]
        await asyncio.gather(*map(asyncio.wrap_future, futures))

    def _started(self):
        if self._pool is None:
            from pebble import ProcessPool

            # Not fork: the caller's process has threads (engine, event loop) whose locks a forked child would inherit. The server
            # imports sympy once, so that the successor of a killed worker is there in milliseconds.
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["math_verify"])
            self._pool = ProcessPool(max_workers=self.count, context=context, initializer=_start_worker)
        return self._pool

    def close(self) -> None:
        """Kill the workers. Calls that still run end in CancelledError."""
        if self._pool is not None:
            self._pool.stop()
            self._pool.join()
            self._pool = None


def _start_worker() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (WORKER_MEMORY, WORKER_MEMORY))
    symbolic.warm()
