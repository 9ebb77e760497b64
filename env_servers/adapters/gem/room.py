"""Room: one thread in which environments run that draw from Python's and numpy's common random numbers, each as if it
were alone.

GEM seeds the process's generators in `reset`, and draws from them in `step`: two episodes side by side would take each
other's numbers, and one seed would give many episodes. So a session has a state of both generators, put in place before
each of its calls and kept after it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


class Room:
    """Its thread is a daemon: a call that never ends must not keep the process from ending, as an executor's would."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Dice, Callable[[], Any]] | None] = SimpleQueue()
        Thread(target=self._work, name="gem", daemon=True).start()

    def _work(self) -> None:
        while (asked := self._calls.get()) is not None:
            answer, dice, call = asked
            if not answer.set_running_or_notify_cancel():  # whoever asked has left
                continue
            try:
                answer.set_result(dice.with_them(call))
            except BaseException as e:
                answer.set_exception(e)

    async def run(self, dice: Dice, call: Callable[[], T]) -> T:
        """`call`, with the generators as `dice` left them. Calls of all sessions come one after another."""
        answer: Future[T] = Future()
        self._calls.put((answer, dice, call))
        return await asyncio.wrap_future(answer)

    async def close(self) -> None:
        self._calls.put(None)


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
            self._python = random.getstate()
            self._numpy = np.random.get_state()
