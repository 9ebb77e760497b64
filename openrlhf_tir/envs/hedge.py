"""Hedged calls: a second attempt starts if the first has no answer for a while. The first answer wins.

Only for calls that may be sent twice (Dean & Barroso, The Tail at Scale, 2013).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def hedged(first: Callable[[], Awaitable[T]], second: Callable[[], Awaitable[T]], after_s: float | None) -> T:
    """Return the first answer of two attempts and cancel the other one.

    If both raise, the first attempt's exception is raised.

    Args:
        first: Starts the first attempt.
        second: Starts the second attempt.
        after_s: Seconds after which the second attempt starts; None for never.
    """
    if after_s is None:
        return await first()
    running = [asyncio.ensure_future(first())]
    try:
        pending = set(running)
        done, pending = await asyncio.wait(pending, timeout=after_s)
        if done:
            return running[0].result()
        running.append(asyncio.ensure_future(second()))
        pending.add(running[1])
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if task.exception() is None:
                    return task.result()
        return running[0].result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
