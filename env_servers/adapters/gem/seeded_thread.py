"""Run environments that draw from Python's and numpy's global random numbers, each as if it were alone.

GEM seeds the process's generators in `reset` and draws from them in `step`: two concurrent episodes would take each
other's numbers, and one seed would give many episodes. So all calls run in one thread, and a session has a state of
both generators, which is restored before each of its calls and saved after it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, TypeVar

from env_servers.own.session_thread import SessionThread

T = TypeVar("T")


class SeededThread:
    """The thread in which all calls run. A call that never ends does not keep the process from exiting."""

    def __init__(self) -> None:
        self._thread = SessionThread()

    async def run(self, random_state: RandomState, call: Callable[[], T]) -> T:
        """Run a call with a session's random numbers. Calls of all sessions run one after another."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, random_state.run, call)

    async def close(self) -> None:
        """Stop the thread after the calls that wait."""
        self._thread.end()


class RandomState:
    """The random numbers of one session: seeded with `seed`, until a call seeds the generators itself."""

    def __init__(self, seed: int) -> None:
        self._seed: int | None = seed
        self._python: Any = None
        self._numpy: Any = None

    def run(self, call: Callable[[], T]) -> T:
        """Run a call with the generators in this state, and save their state after it."""
        import numpy as np

        if self._seed is not None:
            random.seed(self._seed)
            np.random.seed(self._seed)
            self._seed = None
        else:
            random.setstate(self._python)
            np.random.set_state(self._numpy)
        try:
            return call()
        finally:
            self._python = random.getstate()
            self._numpy = np.random.get_state()
