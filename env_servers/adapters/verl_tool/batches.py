"""Send the actions of many sessions as one POST /get_observation.

    {"trajectory_ids": [...], "actions": [...], "extra_fields": [{...}, ...]}  ->  {"observations": [...], "dones":
    [...], "valids": [...]}

Actions that arrive within `window_s` of the first one are sent together, up to `max_batch`. A batch is answered when
its slowest action is. Nothing is sent twice, because a tool server cannot tell a repeated action from a new one. A
malformed entry of the lists is VerlToolFailed for its action; without lists of the right length it is that for the
whole batch.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
from pydantic import BaseModel, ValidationError

from env_servers.admission import CapacityFull
from openrlhf_tir.errors import EnvError

MAX_REPLY = 64 << 20
"""Bytes of the longest answer, which holds the observations of a batch."""
GRACE_S = 5.0
"""Seconds added to the longest deadline of a batch: the server around this adapter keeps the deadline of each
session."""


class VerlToolFailed(EnvError):
    """Raised when the tool server is gone, failed, or answers something else."""


class _Answer(BaseModel):
    observations: list[Any]
    dones: list[Any]
    valids: list[Any]


class Observed(BaseModel):
    """The answer to one action."""

    observation: str | dict[str, Any]
    done: bool
    valid: bool


@dataclass(frozen=True, slots=True)
class _Request:
    """An action that waits for its answer."""

    trajectory: str
    action: str
    extra: dict[str, Any]
    deadline_s: float
    answer: asyncio.Future[Observed]


class Batches:
    """Collects actions and sends them in batches."""

    def __init__(self, http: Callable[[], aiohttp.ClientSession], url: str, *, window_s: float, max_batch: int) -> None:
        self._http = http
        self._url = url
        self._window_s = window_s
        self._max_batch = max_batch
        self._waiting: list[_Request] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sent: set[asyncio.Task[None]] = set()

    async def ask(self, trajectory: str, action: str, extra: dict[str, Any], deadline_s: float) -> Observed:
        """Send an action with the next batch and return its answer. Raises VerlToolFailed, CapacityFull."""
        loop = asyncio.get_running_loop()
        request = _Request(trajectory, action, extra, deadline_s, loop.create_future())
        self._waiting.append(request)
        if len(self._waiting) >= self._max_batch:
            self._flush()
        elif self._timer is None:
            self._timer = loop.call_later(self._window_s, self._flush)
        return await request.answer

    def _flush(self) -> None:
        """Send the actions that wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch = [request for request in self._waiting if not request.answer.done()]  # the others were cancelled
        self._waiting = []
        if batch:
            task = asyncio.create_task(self._send(batch), name=f"batch of {len(batch)} actions")
            self._sent.add(task)
            task.add_done_callback(self._sent.discard)

    async def _send(self, batch: list[_Request]) -> None:
        """Send a batch and hand out its answers."""
        try:
            observed = await self._post(batch)
        except Exception as e:  # of any kind: the callers would otherwise wait for ever
            for request in batch:
                if not request.answer.done():
                    request.answer.set_exception(e)
            return
        for request, answer in zip(batch, observed, strict=True):
            if request.answer.done():
                continue
            if isinstance(answer, VerlToolFailed):
                request.answer.set_exception(answer)
            else:
                request.answer.set_result(answer)

    async def _post(self, batch: list[_Request]) -> list[Observed | VerlToolFailed]:
        """Send a batch and return its answers. Raises VerlToolFailed, CapacityFull."""
        body = {
            "trajectory_ids": [request.trajectory for request in batch],
            "actions": [request.action for request in batch],
            "extra_fields": [request.extra for request in batch],
        }
        timeout = aiohttp.ClientTimeout(total=max(request.deadline_s for request in batch) + GRACE_S)
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
        return [self._observed(*entry) for entry in zip(answer.observations, answer.dones, answer.valids, strict=True)]

    def _observed(self, observation: Any, done: Any, valid: Any) -> Observed | VerlToolFailed:
        """Return the answer to one action, or what is wrong with it."""
        try:
            return Observed(observation=observation, done=done, valid=valid)
        except ValidationError as e:
            first = e.errors(include_url=False, include_input=False)[0]
            return VerlToolFailed(
                f"{self._url}/get_observation answers an action with {first['loc'][0]}: {first['msg']}."
            )

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        """Read an answer of at most MAX_REPLY bytes. Raises VerlToolFailed."""
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
        """Send the actions that wait, and wait for all answers."""
        self._flush()
        await asyncio.gather(*self._sent, return_exceptions=True)
