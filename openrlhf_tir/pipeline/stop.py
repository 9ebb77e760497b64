"""Stop: end a run in good order when a signal or the job's time limit asks for it.

    request ---> nothing more is dispatched ---> the running step ends, or the grace period does ---> checkpoint at the
    boundary ---> Stopped

A push, an evaluation, a drain and an export are cancelled: a resume begins with a push, and with the evaluation and the
export of the saved version if they were pending. Only a step and the copy of the learner's state are waited for,
because in their middle there is nothing to save.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from ..errors import Stopped, TirError
from .saver import Saver
from .scheduler import RolloutScheduler


class StopRequest:
    """Tells the loop that the run is asked to stop. One per process, created before anything is started.

    Attributes:
        grace_s: Seconds that an orderly stop may take (train.stop_grace_s).
        interrupt: Called by `request` if the loop does not run: while models load, or after the loop has ended.
        reason: Why the run is to stop, as text for the user; None while it is not.
    """

    def __init__(self, grace_s: float, interrupt: Callable[[], object] = lambda: None) -> None:
        self.grace_s = grace_s
        self.interrupt = interrupt
        self.reason: str | None = None
        self._loop_runs = False
        self._event = asyncio.Event()
        self._requested_at = 0.0

    def request(self, reason: str) -> None:
        """Ask the run to stop. The first reason counts. Call it on the event loop's thread."""
        if self.reason is None:
            self.reason = reason
            self._requested_at = asyncio.get_running_loop().time()
            self._event.set()
            if not self._loop_runs:
                self.interrupt()

    @property
    def deadline(self) -> float:
        """Event loop time at which the stop must be over. Only once a stop was asked for."""
        return self._requested_at + self.grace_s

    async def hold_if_asked(self) -> None:
        """Return at once, or never return if a stop was asked for; `wind_down` then cancels the caller.

        Call it where new work of the learner would begin, with no await in between. Without it the loop, which goes on
        by itself at the end of a step or of a checkpoint's copy, could be in the middle of the next step before
        `wind_down` is scheduled at all.
        """
        if self.reason is not None:
            await asyncio.get_running_loop().create_future()

    def raise_if_asked(self, loss: BaseException) -> None:
        """Raise Stopped from the loss of a learner rank if a stop was asked for.

        A signal that is sent to the whole job also ends the learner's processes. In training their error cancels
        `wind_down`, which was waiting for the step.
        """
        if self.reason is not None:
            raise Stopped(
                f"The run was stopped: {self.reason}, and a learner rank died meanwhile."
                " The last checkpoint before it counts."
            ) from loss

    async def or_done(self, task: asyncio.Task[Any]) -> bool:
        """Wait until a stop is asked for or the task ends. Return True if the task has still to be stopped."""
        requested = asyncio.create_task(self._event.wait(), name="stop request")
        self._loop_runs = True
        try:
            await asyncio.wait({requested, task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._loop_runs = False
            requested.cancel()
        return not task.done()


async def wind_down(training: asyncio.Task[Any], scheduler: RolloutScheduler, saver: Saver, stop: StopRequest) -> str:
    """Stop the run at the next boundary and save there.

    Args:
        training: The trainer's task.
        scheduler: The run's scheduler.
        saver: Takes the checkpoint.
        stop: The request, with the grace period.

    Returns:
        A sentence that names the checkpoint from which the run can be resumed.
    """
    started = time.monotonic()
    try:
        async with asyncio.timeout_at(stop.deadline):
            await scheduler.wait_until(lambda: training.done() or not (scheduler.learner_is_busy or saver.copying))
            await _cancel_and_wait(training)
            await saver.evaluator.give_up(scheduler.version)
            if not saver.ready:
                return "It had not begun to train: nothing is to be saved."
            await saver.finish()
    except TimeoutError:
        late = "running step" if scheduler.learner_is_busy else "checkpoint"
        await saver.give_up()
        return f"The {late} did not end within train.stop_grace_s = {stop.grace_s:g} s. {saver.last_committed()}"
    except (TirError, OSError) as e:
        return f"No checkpoint could be written ({type(e).__name__}: {e}). {saver.last_committed()}"
    finally:
        await _cancel_and_wait(training)
        await saver.evaluator.give_up(scheduler.version)
    return f"{saver.last_committed()} It took {time.monotonic() - started:.1f} s."


async def _cancel_and_wait(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait({task})
