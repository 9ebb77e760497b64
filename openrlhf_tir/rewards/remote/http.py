"""Call reward servers by HTTP.

    POST {"query": [n], "prompts": [n], "labels": [n]}  ──>  {"rewards": [n], "scores": ..., "extra_logs": ...}

A server that does not answer, or is busy or broken (429, 5xx), is called again after a growing pause; several servers
are called in turn. A request that a server refuses (another 4xx) or answers in another form is not repeated, because it
would fail in the same way.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import aiohttp

from ...errors import RewardError, VerifierError
from ...waiting.backoff import TRANSIENT_STATUSES, backoff_s, jittered
from ..limits import RewardLimits

LONGEST_PAUSE_S = 30.0
"""Longest pause between two attempts, so that a server that comes back is used within half a minute."""
SHOWN = 300
"""Characters of a server's answer that a message shows."""


class RewardServers:
    """A rollout actor's connections to reward servers. They belong to one event loop."""

    def __init__(self, urls: list[str], limits: RewardLimits) -> None:
        """Connect to nothing yet."""
        self.limits = limits
        self.urls = urls
        self._turn = itertools.cycle(urls)
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, queries: list[str], prompts: list[str], labels: list[str]) -> Any:
        """Return a server's answer for a batch of responses.

        Args:
            queries: [n] prompt and response.
            prompts: [n]
            labels: [n]

        Raises:
            VerifierError: No attempt was answered.
            RewardError: A server refused the request, or answered no JSON.
        """
        body = {"query": queries, "prompts": prompts, "labels": labels}
        tries = self.limits.remote_retries + 1
        for failures in itertools.count():
            url = next(self._turn)
            try:
                return await self._post(url, body)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                last = f"{url}: {type(error).__name__}{f': {error}' if str(error) else ''}"
            if failures + 1 >= tries:
                break
            await asyncio.sleep(jittered(backoff_s(failures, cap_s=LONGEST_PAUSE_S)))
        raise VerifierError(
            f"reward.remote_url: {tries} tries were not answered within {self.limits.remote} each, the last:"
            f" {last}. See the server's log."
        )

    async def _post(self, url: str, body: dict[str, list[str]]) -> Any:
        """Make one attempt.

        Raises:
            aiohttp.ClientError, TimeoutError, OSError: The request may be repeated.
            RewardError: It must not.
        """
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self.limits.remote.seconds))
        async with self._session.post(url, json=body, allow_redirects=False) as response:
            text = await response.text("utf-8", errors="replace")
            if response.status in TRANSIENT_STATUSES:
                raise aiohttp.ClientError(f"HTTP {response.status}: {text[:SHOWN]}")
            if response.status != 200:
                raise RewardError(
                    f"reward.remote_url: {url} answered HTTP {response.status}:"
                    f" {text[:SHOWN]} It refuses what OpenRLHF sends: see its log."
                )
        try:
            return json.loads(text)
        except (ValueError, RecursionError):  # also a number with too many digits, or endless nesting
            raise RewardError(
                f'reward.remote_url: {url} answered no JSON: {text[:SHOWN]!r}. It must answer {{"rewards": [...]}}.'
            ) from None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
