"""Orphans: environment sessions whose rollout actor is dead -> closed. An id begins with its owner (session.py)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from pydantic import BaseModel

from ..errors import EnvError, EnvTimeout
from .http import CONNECT_TIMEOUT_S, Broken, EnvHttp, Full

log = logging.getLogger(__name__)


class Closed(BaseModel):
    closed: int


async def close_orphans(owner: str, servers: Sequence[str], *, token: str | None = None) -> int:
    """Close every session of `owner` on all `servers`; how many there were. Where a server is down they expire."""
    http = EnvHttp(token)

    async def on(server: str) -> int:
        try:
            return (
                await http.send("DELETE", f"{server}/sessions/{owner}", None, Closed, timeout_s=CONNECT_TIMEOUT_S)
            ).closed
        except (Broken, Full, EnvTimeout, EnvError) as e:
            log.warning("sessions of %s on %s stay until they expire: %s", owner, server, e)
            return 0

    try:
        closed = sum(await asyncio.gather(*(on(s) for s in servers)))
    finally:
        await http.close()
    log.info("closed %d environment sessions of a dead rollout actor", closed)
    return closed
