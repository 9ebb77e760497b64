"""Background: a task that is meant to run for as long as its owner. One that dies is started again, or ends its owner
by name.

    async with background("control file", follow):     follow() raises: logged, started again after a pause
        ...                                            five in a row: the body is cancelled, BackgroundDied is raised

What the user must mend (ConfigError, PipelineError) is not tried again. `kept_running` is the same without a body to
cancel, for an owner that awaits it, or that gives the failure another meaning.
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
"""Failures in a row that are the end: with the pauses below, half a minute of them."""
FOR_EVER = 1 << 62
"""`attempts` of a task that the run can do without for a while: it is started again however often it fails."""
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0
WELL_S = 300.0
"""Who ran for so long before it failed counts its failures anew."""


async def kept_running(
    name: str,
    work: Callable[[], Awaitable[None]],
    *,
    attempts: int = ATTEMPTS,
    first_pause_s: float = FIRST_PAUSE_S,
    max_pause_s: float = MAX_PAUSE_S,
) -> None:
    """Await `work()` until it returns by itself; when it raises, log that and call it again after a pause that grows.

    Raises BackgroundDied, which names the task and its last error, when it failed `attempts` times in a row;
    ConfigError and PipelineError at once."""
    loop, failures = asyncio.get_running_loop(), 0
    while True:
        begun = loop.time()
        try:
            return await work()
        except (ConfigError, PipelineError):
            raise
        # whatever it is, nobody else awaits this task: unsaid it would be a feature that stopped without a word
        except Exception as e:
            failures = 1 if loop.time() - begun >= WELL_S else failures + 1
            what = f"{type(e).__name__}: {e}"
            if failures >= attempts:
                raise BackgroundDied(
                    f"The background task '{name}' failed {failures} times in a row, the last time with {what}."
                    " The run cannot do without it."
                ) from e
            pause = backoff_s(failures - 1, first_s=first_pause_s, cap_s=max_pause_s)
            log.error("background task '%s' failed (%s); starting it again in %g s", name, what, pause, exc_info=e)
            await asyncio.sleep(pause)


@asynccontextmanager
async def background(
    name: str,
    work: Callable[[], Awaitable[None]],
    *,
    attempts: int = ATTEMPTS,
    first_pause_s: float = FIRST_PAUSE_S,
    max_pause_s: float = MAX_PAUSE_S,
) -> AsyncIterator[asyncio.Task[None]]:
    """`work` runs beside the body and is cancelled at its end. The rest is as for `kept_running`.

    When it cannot be kept running the body is cancelled and BackgroundDied raised. An error of the body is raised as it
    is; both come in a group."""
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(
                kept_running(name, work, attempts=attempts, first_pause_s=first_pause_s, max_pause_s=max_pause_s),
                name=name,
            )
            try:
                yield task
            finally:
                task.cancel()
    except BaseExceptionGroup as errors:
        if len(errors.exceptions) > 1:
            raise
        raise errors.exceptions[0] from errors.exceptions[0].__cause__
