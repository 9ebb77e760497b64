"""Start and stop containers through the API that OpenHands' remote runtime speaks
(runtime/impl/remote/remote_runtime.py).

    GET  /image_exists?image=   {exists}                                an API without it (404) is not asked
    POST /start                 {image, command, working_dir, environment, session_id, resource_factor} -> {runtime_id,
                                url, session_api_key?}
    GET  /sessions/{session_id} the same, {status}                      after a /start whose answer was lost
    GET  /runtime/{runtime_id}  {pod_status, restart_reasons}           until running, then GET {url}/alive
    POST /stop                  {runtime_id}

Readiness must be polled: the API does not report it. Every container that may have been started is stopped, also if its
start was cancelled.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .container import Container, Containers
from .faults import ImageUnavailable, RuntimeBroken, RuntimeFault, RuntimeGone, RuntimeLate, RuntimeUnusable
from .http import RuntimeHttp, pause_s

log = logging.getLogger(__name__)
ENDED = (
    "failed", "unknown", "crashloopbackoff", "error", "errimagepull", "imagepullbackoff", "invalidimagename", "stopped",
)  # fmt: skip
"""Values of `pod_status` of a container that will not come up by itself."""
STOP_TRIES = 3
"""How often a container is told to stop."""


@dataclass(frozen=True, slots=True)
class StartOptions:
    """How containers are started.

    Attributes:
        command: What the container runs: the server of its actions.
        start_s: Seconds from the request to an answering container, retries included.
        resource_factor: Size of the container, in the API's unit.
    """

    command: Sequence[str]
    start_s: float
    resource_factor: int = 1


class RuntimeApi(Containers):
    """The containers of one API."""

    def __init__(self, http: RuntimeHttp, url: str, key: str, options: StartOptions) -> None:
        """Create the client.

        Args:
            http: Sends the requests.
            url: URL of the API.
            key: Key of the API. It is never sent to a container, which the model may control.
            options: How containers are started.
        """
        super().__init__(http)
        self._url = url.rstrip("/")
        self._options = options
        self._headers = {"X-API-Key": key} if key else {}

    async def start(self, image: str) -> Container:
        session = f"tir-{uuid.uuid4().hex}"
        start_was_sent = False
        reply = {}
        self.running += 1
        try:
            async with asyncio.timeout(self._options.start_s):
                await self._check(image)
                start_was_sent = True
                reply = await self._started(image, session)
                container = Container(
                    self._http,
                    str(reply["url"]).rstrip("/"),
                    str(reply["runtime_id"]),
                    str(reply.get("session_api_key") or ""),
                )
                await self._until_ready(container, image)
                return container
        except BaseException as e:
            self._in_background(self._stop(reply.get("runtime_id"), session if start_was_sent else ""))
            if isinstance(e, TimeoutError):
                raise RuntimeLate(
                    f"{self._url} had no container of {image} that answers within {self._options.start_s:g} s"
                    " (--start-timeout)."
                ) from None
            raise

    def stop(self, container: Container) -> None:
        self._in_background(self._stop(container.runtime_id, ""))

    async def _check(self, image: str) -> None:
        """Raise ImageUnavailable if the API says that there is no such image."""
        try:
            reply = await self._get("/image_exists", {"image": image})
        except RuntimeGone:
            return
        if reply.get("exists") is False:
            raise ImageUnavailable(
                f"{self._url} has no image {image}. Build or push it there, or correct the row's image (--image)."
            )

    async def _started(self, image: str, session: str) -> dict[str, Any]:
        """Request a container, if necessary several times, and return the API's reply."""
        body = {
            "image": image,
            "command": list(self._options.command),
            "working_dir": "/openhands/code/",
            "environment": {},
            "session_id": session,
            "resource_factor": self._options.resource_factor,
        }
        failures = 0
        while True:
            try:
                return _complete(
                    _read(
                        await self._http.ask("POST", f"{self._url}/start", self._headers, repeatable=False, json=body)
                    )
                )
            except RuntimeUnusable:
                raise
            except RuntimeFault:
                if (existing := await self._existing(session)) is not None:
                    return existing
                failures += 1
                if failures > self._http.retries:
                    raise
            await asyncio.sleep(pause_s(failures))

    async def _existing(self, session: str) -> dict[str, Any] | None:
        """Return the reply for a container that an earlier /start of this session has begun; None if there is none."""
        try:
            reply = await self._get(f"/sessions/{session}")
            return _complete(reply) if str(reply.get("status")).lower() not in ENDED else None
        except RuntimeFault:
            return None

    async def _until_ready(self, container: Container, image: str) -> None:
        """Wait until a container answers. Raises ImageUnavailable if it ends."""
        polls = 0
        while True:
            reply = await self._get(f"/runtime/{container.runtime_id}")
            status = str(reply.get("pod_status", "")).lower()
            if status in ENDED:
                reason = f"{status}, {reply['restart_reasons']}" if reply.get("restart_reasons") else status
                raise ImageUnavailable(f"a container of {image} does not stay up: {reason}.")
            if status == "running" and await container.is_alive():
                return
            polls += 1
            await asyncio.sleep(pause_s(polls))

    async def _get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        return _read(await self._http.ask("GET", self._url + path, self._headers, repeatable=True, params=params))

    async def _stop(self, runtime: str | None, session: str) -> None:
        """Stop a container.

        Args:
            runtime: Its id; None if the start was cancelled before the reply.
            session: Session of such a start, by which a container may still be found.

        A container that cannot be stopped is logged, and left to the API to expire.
        """
        for failures in range(1, STOP_TRIES + 1):
            try:
                if runtime is None and session and (existing := await self._existing(session)):
                    runtime = str(existing["runtime_id"])
                if runtime is not None:
                    await self._http.ask(
                        "POST", f"{self._url}/stop", self._headers, repeatable=True, json={"runtime_id": runtime}
                    )
                if runtime is not None or not session:
                    break
                if failures < STOP_TRIES:
                    await asyncio.sleep(pause_s(failures))
            except RuntimeGone:
                break
            except RuntimeFault as e:
                if failures == STOP_TRIES:
                    self.stops_failed += 1
                    log.warning("a container was not stopped", extra={"runtime": runtime, "error": str(e)})
                else:
                    await asyncio.sleep(pause_s(failures))
        self.running -= 1


def _read(body: bytes) -> dict[str, Any]:
    """Return a reply that is a JSON object. Raises RuntimeBroken."""
    try:
        reply = json.loads(body)
    except (ValueError, RecursionError):
        reply = None
    if not isinstance(reply, dict):
        raise RuntimeBroken(f"the runtime API answered something that is not a JSON object: {body[:200]!r}")
    return reply


def _complete(reply: dict[str, Any]) -> dict[str, Any]:
    """Return a reply that names a container. Raises RuntimeBroken."""
    if not isinstance(reply.get("runtime_id"), str) or not str(reply.get("url")).startswith(("http://", "https://")):
        raise RuntimeBroken(f"the runtime API named no container (runtime_id, url): {str(reply)[:200]}")
    return reply
