"""A pool of HTTP connections for sessions: made in its event loop when first asked for, closed at its stop."""

from __future__ import annotations

import aiohttp


class Pool:
    def __init__(self, headers: dict[str, str] | None = None) -> None:
        self._headers = headers or {}
        self._http: aiohttp.ClientSession | None = None

    def __call__(self) -> aiohttp.ClientSession:
        """Without limit: a session may hold its connection for as long as it lives."""
        if self._http is None:
            self._http = aiohttp.ClientSession(headers=self._headers, connector=aiohttp.TCPConnector(limit=0))
        return self._http

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
