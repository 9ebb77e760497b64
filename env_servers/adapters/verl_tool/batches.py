"""Batches: actions of many sessions -> one POST /get_observation -> each session's Observed.

    {"trajectory_ids": [...], "actions": [...], "extra_fields": [{...}, ...]}  ->  {"observations": [...], "dones":
    [...], "valids": [...]}

What comes within `window_s` of the first goes together, up to `max_batch`; a batch is answered when its slowest action
is. Nothing is sent twice: a tool server does not know a repeated action from a new one. What is no such answer is
VerlToolFailed for all of the batch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
from pydantic import BaseModel

from env_servers.admission import CapacityFull
from openrlhf_tir.errors import EnvError

MAX_REPLY = 64 << 20
"""Bytes of one answer, which holds a batch's observations."""
GRACE_S = 5.0
"""Added to the longest deadline of a batch: each session's own is kept by the server around it."""


class VerlToolFailed(EnvError):
    """The tool server is gone, failed, or answers something else."""


class _Answer(BaseModel):
    observations: list[str | dict[str, Any]]
    dones: list[bool]
    valids: list[bool]


@dataclass(frozen=True, slots=True)
class Observed:
    observation: str | dict[str, Any]
    done: bool
    valid: bool


@dataclass(frozen=True, slots=True)
class _Asked:
    trajectory: str
    action: str
    extra: dict[str, Any]
    deadline_s: float
    answer: asyncio.Future[Observed]


class Batches:
    def __init__(self, http: Callable[[], aiohttp.ClientSession], url: str, *, window_s: float, max_batch: int) -> None:
        self._http = http
        self._url = url
        self._window_s = window_s
        self._max_batch = max_batch
        self._waiting: list[_Asked] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sent: set[asyncio.Task[None]] = set()

    async def ask(self, trajectory: str, action: str, extra: dict[str, Any], deadline_s: float) -> Observed:
        """Raises VerlToolFailed, CapacityFull."""
        loop = asyncio.get_running_loop()
        asked = _Asked(trajectory, action, extra, deadline_s, loop.create_future())
        self._waiting.append(asked)
        if len(self._waiting) >= self._max_batch:
            self._flush()
        elif self._timer is None:
            self._timer = loop.call_later(self._window_s, self._flush)
        return await asked.answer

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch = [a for a in self._waiting if not a.answer.done()]  # who has left meanwhile is not sent
        self._waiting = []
        if batch:
            task = asyncio.create_task(self._send(batch), name=f"batch of {len(batch)} actions")
            self._sent.add(task)
            task.add_done_callback(self._sent.discard)

    async def _send(self, batch: list[_Asked]) -> None:
        try:
            observed = await self._post(batch)
        except Exception as e:  # whatever it is: those who asked would wait for ever
            for a in batch:
                if not a.answer.done():
                    a.answer.set_exception(e)
            return
        for a, o in zip(batch, observed, strict=True):
            if not a.answer.done():
                a.answer.set_result(o)

    async def _post(self, batch: list[_Asked]) -> list[Observed]:
        body = {
            "trajectory_ids": [a.trajectory for a in batch],
            "actions": [a.action for a in batch],
            "extra_fields": [a.extra for a in batch],
        }
        timeout = aiohttp.ClientTimeout(total=max(a.deadline_s for a in batch) + GRACE_S)
        try:
            url = f"{self._url}/get_observation"
            async with self._http().post(url, json=body, timeout=timeout, allow_redirects=False) as r:
                text = (await self._read(r)).decode("utf-8", "replace")
        except (aiohttp.ClientError, TimeoutError, OSError) as e:
            raise VerlToolFailed(f"The tool server at {self._url} does not answer: {type(e).__name__}: {e}.") from e
        if r.status == 429:
            raise CapacityFull(f"the tool server at {self._url}: {text[:200]}", retry_after_s=1)
        if r.status != 200:
            raise VerlToolFailed(f"The tool server at {self._url} failed: HTTP {r.status}: {text[:500]}")
        try:
            answer = _Answer.model_validate(json.loads(text))
        except (ValueError, RecursionError) as e:  # ValueError: also pydantic's
            raise VerlToolFailed(
                f"{self._url}/get_observation answers no lists of observations, dones and valids: {text[:200]!r}."
            ) from e
        if not len(answer.observations) == len(answer.dones) == len(answer.valids) == len(batch):
            raise VerlToolFailed(
                f"{self._url}/get_observation answers {len(answer.observations)} observations for {len(batch)} actions."
            )
        return [Observed(*one) for one in zip(answer.observations, answer.dones, answer.valids, strict=True)]

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        content = bytearray()
        async for part in response.content.iter_any():
            content += part
            if len(content) > MAX_REPLY:
                raise VerlToolFailed(
                    f"{self._url}/get_observation answers more than {MAX_REPLY} bytes."
                    " Let its tools cut their observations."
                )
        return bytes(content)

    async def close(self) -> None:
        """Waits for what has been sent."""
        self._flush()
        await asyncio.gather(*self._sent, return_exceptions=True)
