"""Tasks that must run for as long as their owner. One that fails is started again, or ends its owner with its name.

    async with background("control file", follow):
        ...

If follow() raises, the error is logged and follow() is started again after a pause. After five failures in a row the
body is cancelled and BackgroundDied is raised. An error that the user must correct (ConfigError, PipelineError) is
raised at once. `kept_running` does the same without a body, for an owner that awaits it, or for which the failure means
something else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from ..errors import BackgroundDied, ConfigError, PipelineError
from .backoff import backoff_s

log = logging.getLogger(__name__)
ATTEMPTS = 5
"""Failures in a row after which the task is given up: with the pauses below, half a minute of failures."""
FOR_EVER = 1 << 62
"""`attempts` of a task that the run can do without for a while: it is started again however often it fails."""
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0
WELL_S = 300.0
"""A task that ran for this long before it failed counts its failures from 1 again."""


async def kept_running(
    name: str,
    work: Callable[[], Awaitable[None]],
    *,
    attempts: int = ATTEMPTS,
    first_pause_s: float = FIRST_PAUSE_S,
) -> None:
    """Await `work()` until it returns. If it raises, log the error and call it again after a growing pause.

    Args:
        name: Name of the task, for messages.
        work: Starts the task.
        attempts: Failures in a row after which it is given up.
        first_pause_s: Pause after the first failure, in seconds.

    Raises:
        BackgroundDied: It failed `attempts` times in a row.
        ConfigError: `work` raised it; it is not repeated.
        PipelineError: The same.
    """
    loop = asyncio.get_running_loop()
    failures = 0
    while True:
        started_at = loop.time()
        try:
            return await work()
        except (ConfigError, PipelineError):
            raise
        except Exception as e:
            # Any exception: nobody else awaits this task, so its feature would stop without a message.
            failures = 1 if loop.time() - started_at >= WELL_S else failures + 1
            error = f"{type(e).__name__}: {e}"
            if failures >= attempts:
                raise BackgroundDied(
                    f"The background task '{name}' failed {failures} times in a row, the last time with {error}."
                    " The run cannot do without it."
                ) from e
            pause_s = backoff_s(failures - 1, first_s=first_pause_s, cap_s=MAX_PAUSE_S)
            log.error("Background task '%s' failed (%s); it starts again in %g s.", name, error, pause_s, exc_info=e)
            await asyncio.sleep(pause_s)


@asynccontextmanager
async def background(
    name: str,
    work: Callable[[], Awaitable[None]],
    *,
    attempts: int = ATTEMPTS,
) -> AsyncIterator[asyncio.Task[None]]:
    """Keep `work` running beside the body and cancel it at the body's end. The arguments are those of `kept_running`.

    If `work` cannot be kept running, the body is cancelled and BackgroundDied is raised. An error of the body is raised
    unchanged; if both fail, an exception group is raised.
    """
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(kept_running(name, work, attempts=attempts), name=name)
            try:
                yield task
            finally:
                task.cancel()
    except BaseExceptionGroup as errors:
        if len(errors.exceptions) > 1:
            raise
        raise errors.exceptions[0] from errors.exceptions[0].__cause__
