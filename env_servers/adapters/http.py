"""A pool of HTTP connections that the sessions of a server share."""

from __future__ import annotations

import aiohttp


class Pool:
    """Creates the pool in the event loop of its first user."""

    def __init__(self, headers: dict[str, str] | None = None) -> None:
        self._headers = headers or {}
        self._http: aiohttp.ClientSession | None = None

    def __call__(self) -> aiohttp.ClientSession:
        """Return the pool. The number of connections is not limited: a session may hold one for as long as it lives."""
        if self._http is None:
            self._http = aiohttp.ClientSession(headers=self._headers, connector=aiohttp.TCPConnector(limit=0))
        return self._http

    async def close(self) -> None:
        """Close all connections."""
        if self._http is not None:
            await self._http.close()
