"""Tasks that run for as long as their owner. One that fails is started again.

    async with background("control file", follow):
        ...

If follow() raises, the error is logged and follow() is started again after a pause, however often it fails: a run can
do without it for a while. An error that the user must correct (ConfigError, PipelineError) cancels the body and is
raised at once. `kept_running` does the same without a body, and may give the task up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from ..errors import BackgroundDied, ConfigError, PipelineError
from .backoff import backoff_s

log = logging.getLogger(__name__)
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0
WELL_S = 300.0
"""A task that ran for this long before it failed counts its failures from 1 again."""


async def kept_running(
    name: str,
    work: Callable[[], Awaitable[None]],
    *,
    attempts: int | None = None,
    first_pause_s: float = FIRST_PAUSE_S,
) -> None:
    """Await `work()` until it returns. If it raises, log the error and call it again after a growing pause.

    Args:
        name: Name of the task, for messages.
        work: Starts the task.
        attempts: Failures in a row after which it is given up; None: never.
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
            if failures == attempts:
                raise BackgroundDied(
                    f"The background task '{name}' failed {failures} times in a row, the last time with {error}."
                ) from e
            pause_s = backoff_s(failures - 1, first_s=first_pause_s, cap_s=MAX_PAUSE_S)
            log.error("Background task '%s' failed (%s); it starts again in %g s.", name, error, pause_s, exc_info=e)
            await asyncio.sleep(pause_s)


@asynccontextmanager
async def background(name: str, work: Callable[[], Awaitable[None]]) -> AsyncIterator[asyncio.Task[None]]:
    """Keep `work` running beside the body and cancel it at the body's end.

    What `kept_running` raises cancels the body. An error of the body is raised unchanged; if both fail, an exception
    group is raised.
    """
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(kept_running(name, work), name=name)
            try:
                yield task
            finally:
                task.cancel()
    except BaseExceptionGroup as errors:
        if len(errors.exceptions) > 1:
            raise
        raise errors.exceptions[0] from errors.exceptions[0].__cause__
