"""Hedge: a second attempt starts when the first has said nothing for a while; the first answer wins, the loser is
cancelled.

Only for calls that may be sent twice (Dean & Barroso, The Tail at Scale, 2013).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def hedged(first: Callable[[], Awaitable[T]], second: Callable[[], Awaitable[T]], after_s: float | None) -> T:
    """`after_s` None: no second attempt. Raises what the first raised when neither has an answer."""
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
