"""Close the environment sessions of a rollout actor that died. A session's id begins with its owner (session.py)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from pydantic import BaseModel

from ...errors import InfraError
from .http import CLOSE_TIMEOUT_S, Broken, EnvHttp, Full

log = logging.getLogger(__name__)


class ClosedSessions(BaseModel):
    """Reply of a server that closed all sessions of an owner."""

    closed: int


async def close_orphans(owner: str, servers: Sequence[str], *, token: str | None = None) -> int:
    """Close every session of an owner and return their number. On a server that is down they expire.

    Args:
        owner: Prefix of the sessions' ids.
        servers: Base URLs.
        token: Bearer token of the servers.
    """
    http = EnvHttp(token)

    async def close_on(server: str) -> int:
        url = f"{server}/sessions/{owner}"
        try:
            reply = await http.send("DELETE", url, None, ClosedSessions, timeout_s=CLOSE_TIMEOUT_S)
        except (Broken, Full, InfraError) as e:
            log.warning("The sessions of %s on %s stay open until they expire: %s", owner, server, e)
            return 0
        return reply.closed

    try:
        closed = sum(await asyncio.gather(*(close_on(server) for server in servers)))
    finally:
        await http.close()
    log.info("Closed %d environment sessions of a rollout actor that died.", closed)
    return closed
