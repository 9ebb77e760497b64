"""Room: one thread in which environments run that draw from Python's and numpy's common random numbers, each as if it were alone.

GEM seeds the process's generators in `reset`, and draws from them in `step`: two episodes side by side would take each other's numbers,
and one seed would give many episodes. So a session has a state of both generators, put in place before each of its calls and kept after it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Room:
    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gem")

    async def run(self, dice: Dice, call: Callable[[], T]) -> T:
        """`call`, with the generators as `dice` left them. Calls of all sessions come one after another."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, dice.with_them, call)

    async def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


class Dice:
    """One session's random numbers; from `seed` until a call seeds them itself."""

    def __init__(self, seed: int) -> None:
        self._seed: int | None = seed
        self._python: Any = None
        self._numpy: Any = None

    def with_them(self, call: Callable[[], T]) -> T:
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
            self._python, self._numpy = random.getstate(), np.random.get_state()
