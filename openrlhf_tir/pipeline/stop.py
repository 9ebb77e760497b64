"""Stop: a run that is asked to end does so in good order. A signal or the job's time limit asks; the loop answers.

    ask ---> nothing more is dispatched ---> the running step ends, or the grace does ---> checkpoint at the boundary
    ---> Stopped

A push, an evaluation and a drain are given up: a resume begins with a push, and with the evaluation of the version that
was saved, if that was due. Only a step and the copy of the learner's state are waited for, because in their middle
there is nothing to save.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from ..errors import TirError
from .resume import Saver
from .scheduler import RolloutScheduler


class StopRequest:
    """One per process, made before anything is started. `asked` is the reason, for a person; None: go on.

    `interrupt` is called when nobody listens: while models load, or after the loop has ended.
    """

    def __init__(self, grace_s: float, interrupt: Callable[[], object] = lambda: None) -> None:
        self.grace_s, self.interrupt = grace_s, interrupt
        self._listening = False
        self.asked: str | None = None
        self._event = asyncio.Event()
        self._asked_at = 0.0

    def ask(self, why: str) -> None:
        """The first reason counts. Belongs to the event loop's thread."""
        if self.asked is None:
            self.asked, self._asked_at = why, asyncio.get_running_loop().time()
            self._event.set()
            if not self._listening:
                self.interrupt()

    @property
    def deadline(self) -> float:
        """When the stop must be over, in the event loop's seconds; defined only once a stop was asked for."""
        return self._asked_at + self.grace_s

    async def hold_if_asked(self) -> None:
        """Wait for ever once a stop was asked for; whoever winds the run down cancels the caller.

        Called where new work of the learner would begin, with no await in between. Without it the loop, which goes on
        by itself at the end of a step or of a checkpoint's copy, could be in the middle of the next step before
        `wind_down` is scheduled at all.
        """
        if self.asked is not None:
            await asyncio.get_running_loop().create_future()

    async def or_done(self, task: asyncio.Task[Any]) -> bool:
        """Wait for the request or the task's end. Whether the task has still to be stopped."""
        asked = asyncio.create_task(self._event.wait(), name="stop request")
        self._listening = True
        try:
            await asyncio.wait({asked, task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._listening = False
            asked.cancel()
        return not task.done()


async def wind_down(training: asyncio.Task[Any], scheduler: RolloutScheduler, saver: Saver, stop: StopRequest) -> str:
    """Stop `training` at the next boundary and save there, within the grace. Says what can be resumed from."""
    started = time.monotonic()
    try:
        async with asyncio.timeout_at(stop.deadline):
            await scheduler.wait_until(lambda: training.done() or not (scheduler.learner_is_busy or saver.copying))
            await _cancelled(training)
            await saver.evaluator.give_up(scheduler.version)
            if not saver.ready:
                return "It had not begun to train: nothing is to be saved."
            await saver.finish()
    except TimeoutError:
        saver.give_up()
        what = "The running step" if scheduler.learner_is_busy else "The checkpoint"
        return (
            f"{what} did not end within train.stop_grace_s = {stop.grace_s:g} s and is given up."
            f" {saver.last_committed()}"
        )
    except (TirError, OSError) as e:
        return f"No checkpoint could be written ({type(e).__name__}: {e}). {saver.last_committed()}"
    finally:
        await _cancelled(training)
        await saver.evaluator.give_up(scheduler.version)
    return f"{saver.last_committed()} It took {time.monotonic() - started:.1f} s."


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait({task})
