"""Send requests to a runtime API or to one of its containers. Time, size and retries are bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from env_servers.adapters.http import Pool
from openrlhf_tir.waiting.backoff import backoff_s, jittered

from .faults import RuntimeBroken, RuntimeFault, RuntimeGone, RuntimeLate, RuntimeLost, RuntimeRefused

MAX_BYTES = 16 << 20
"""Bytes of the longest reply."""
FIRST_PAUSE_S = 0.2
"""Seconds before the second try; the pause doubles with each failure."""
MAX_PAUSE_S = 5.0
"""Longest pause."""


class RuntimeHttp:
    """The connections to an API and its containers."""

    def __init__(self, *, request_s: float, retries: int) -> None:
        """Create the pool.

        Args:
            request_s: Deadline of one request.
            retries: Tries after the first failure of a request that may be repeated.
        """
        self.request_s = request_s
        self.retries = retries
        self._pool = Pool()

    async def close(self) -> None:
        await self._pool.close()

    async def ask(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        *,
        repeatable: bool,
        seconds: float | None = None,
        json: Any = None,
        form: Callable[[], aiohttp.FormData] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> bytes:
        """Send a request and return the body of a reply with status 200.

        Args:
            method: HTTP method.
            url: URL.
            headers: Headers.
            repeatable: Whether sending it twice has the same effect as once. Otherwise it is repeated only if it was
                not accepted.
            seconds: Deadline; None: the default.
            json: Body as JSON.
            form: Returns the body as a form; called for each try.
            params: Query.

        Raises:
            RuntimeFault: There is no such reply.
        """
        failures = 0
        while True:
            try:
                async with asyncio.timeout(seconds or self.request_s):
                    return await self._once(method, url, headers, json, form() if form else None, params)
            except TimeoutError:
                fault: RuntimeFault = RuntimeLate(
                    f"{method} {url} had no answer within {seconds or self.request_s:g} s."
                )
            except (RuntimeRefused, RuntimeGone):
                raise
            except RuntimeFault as e:
                fault = e
            failures += 1
            if failures > self.retries or not (repeatable or fault.unsent):
                raise fault
            await asyncio.sleep(pause_s(failures))

    async def _once(
        self, method: str, url: str, headers: Mapping[str, str], json: Any, form: Any, params: Mapping[str, str] | None
    ) -> bytes:
        try:
            # No redirects: the model may control what answers, and must not direct this machine's requests.
            async with self._pool().request(
                method,
                url,
                headers=headers,
                json=json,
                data=form,
                params=params,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None),
            ) as reply:
                body = await _bounded(reply, url)
                if reply.status == 200:
                    return body
                raise _fault_of(
                    reply.status, f"{method} {url} answered {reply.status}: {body[:300].decode('utf-8', 'replace')}"
                )
        except aiohttp.ClientConnectorError as e:
            lost = RuntimeLost(f"{method} {url}: {e}.")
            lost.unsent = True
            raise lost from None
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError) as e:
            raise RuntimeLost(f"{method} {url}: the connection broke ({type(e).__name__}: {e}).") from None
        except (aiohttp.ClientError, UnicodeError) as e:  # UnicodeError: a host that cannot be looked up, as "a..b"
            raise RuntimeBroken(f"{method} {url} gave no HTTP answer ({type(e).__name__}: {e}).") from None


def pause_s(failures: int) -> float:
    """Return the seconds before the next try, after this number of failures."""
    return jittered(backoff_s(failures - 1, first_s=FIRST_PAUSE_S, cap_s=MAX_PAUSE_S))


async def _bounded(reply: aiohttp.ClientResponse, url: str) -> bytes:
    parts = []
    size = 0
    async for part in reply.content.iter_chunked(1 << 16):
        parts.append(part)
        size += len(part)
        if size > MAX_BYTES:
            raise RuntimeBroken(f"{url} answered more than {MAX_BYTES >> 20} MiB.")
    return b"".join(parts)


def _fault_of(status: int, message: str) -> RuntimeFault:
    """Return the fault that a status stands for."""
    if status in (404, 410):
        return RuntimeGone(message)
    if status in (502, 503, 504):
        return RuntimeLost(message)
    if status == 429:
        fault = RuntimeLost(message)
        fault.unsent = True
        return fault
    return RuntimeRefused(message) if 400 <= status < 500 else RuntimeBroken(message)
