"""RuntimeApi: image -> a container that answers, and its end. The API that OpenHands' remote runtime speaks
(runtime/impl/remote/remote_runtime.py).

    GET  /image_exists?image=   {exists}                                an API without it (404) is not asked
    POST /start                 {image, command, working_dir, environment, session_id, resource_factor} -> {runtime_id,
                                url, session_api_key?}
    GET  /sessions/{session_id} the same, {status}                      after a /start whose answer was lost
    GET  /runtime/{runtime_id}  {pod_status, restart_reasons}           until running, then GET {url}/alive
    POST /stop                  {runtime_id}

Readiness can only be asked for: the API tells nobody. Every container that may have been started is stopped, also when
its start was given up."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .container import Container
from .faults import ImageUnavailable, RuntimeBroken, RuntimeFault, RuntimeGone, RuntimeLate, RuntimeUnusable
from .http import RuntimeHttp, pause_s

log = logging.getLogger(__name__)
ENDED = (
    "failed", "unknown", "crashloopbackoff", "error", "errimagepull", "imagepullbackoff", "invalidimagename", "stopped",
)  # fmt: skip
"""What `pod_status` says of a container that will not come up by itself."""
STOP_TRIES = 3


@dataclass(frozen=True, slots=True)
class StartOptions:
    command: Sequence[str]
    """What the container runs: the server of its actions."""
    start_s: float
    """Seconds from the request to an answering container, retries included."""
    resource_factor: int = 1


class RuntimeApi:
    def __init__(self, http: RuntimeHttp, url: str, key: str, options: StartOptions) -> None:
        """`key` is told to the API alone, never to a container: what answers there may be the model's."""
        self._http = http
        self._url = url.rstrip("/")
        self._options = options
        self._headers = {"X-API-Key": key} if key else {}
        self._stopping: set[asyncio.Task[None]] = set()
        self.running = 0
        self.stops_failed = 0
        """Containers that are ours now; containers that the API would not stop."""

    async def start(self, image: str) -> Container:
        """Raises RuntimeFault. Whoever has the container stops it."""
        session = f"tir-{uuid.uuid4().hex}"
        asked = False
        told = {}
        self.running += 1
        try:
            async with asyncio.timeout(self._options.start_s):
                await self._check(image)
                asked = True
                told = await self._started(image, session)
                container = Container(
                    self._http,
                    str(told["url"]).rstrip("/"),
                    str(told["runtime_id"]),
                    str(told.get("session_api_key") or ""),
                )
                await self._until_ready(container, image)
                return container
        except BaseException as e:
            self._in_background(self._stop(told.get("runtime_id"), session if asked else ""))
            if isinstance(e, TimeoutError):
                raise RuntimeLate(
                    f"{self._url} had no container of {image} that answers within {self._options.start_s:g} s"
                    " (--start-timeout)."
                ) from None
            raise

    def stop(self, container: Container) -> None:
        """In the background: nobody waits for it but `close`."""
        self._in_background(self._stop(container.runtime_id, ""))

    async def close(self) -> None:
        while self._stopping:
            await asyncio.wait(self._stopping)
        await self._http.close()

    async def _check(self, image: str) -> None:
        try:
            told = await self._get("/image_exists", {"image": image})
        except RuntimeGone:
            return
        if told.get("exists") is False:
            raise ImageUnavailable(
                f"{self._url} has no image {image}. Build or push it there, or correct the row's image (--image)."
            )

    async def _started(self, image: str, session: str) -> dict[str, Any]:
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
                return _whole(
                    _read(await self._http.ask("POST", f"{self._url}/start", self._headers, again=False, json=body))
                )
            except RuntimeUnusable:
                raise
            except RuntimeFault:
                if (found := await self._existing(session)) is not None:
                    return found
                failures += 1
                if failures > self._http.retries:
                    raise
            await asyncio.sleep(pause_s(failures))

    async def _existing(self, session: str) -> dict[str, Any] | None:
        """What an earlier /start with this session has begun."""
        try:
            told = await self._get(f"/sessions/{session}")
            return _whole(told) if str(told.get("status")).lower() not in ENDED else None
        except RuntimeFault:
            return None

    async def _until_ready(self, container: Container, image: str) -> None:
        asked = 0
        while True:
            told = await self._get(f"/runtime/{container.runtime_id}")
            status = str(told.get("pod_status", "")).lower()
            if status in ENDED:
                why = f"{status}, {told['restart_reasons']}" if told.get("restart_reasons") else status
                raise ImageUnavailable(f"a container of {image} does not stay up: {why}.")
            if status == "running" and await container.is_alive():
                return
            asked += 1
            await asyncio.sleep(pause_s(asked))

    async def _get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        return _read(await self._http.ask("GET", self._url + path, self._headers, again=True, params=params))

    async def _stop(self, runtime: str | None, session: str) -> None:
        """`session` instead: of a start that was given up, and may yet show. A container that stays is said, and is the
        API's to expire."""
        for failures in range(1, STOP_TRIES + 1):
            try:
                if runtime is None and session and (found := await self._existing(session)):
                    runtime = str(found["runtime_id"])
                if runtime is not None:
                    await self._http.ask(
                        "POST", f"{self._url}/stop", self._headers, again=True, json={"runtime_id": runtime}
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

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="stop a container")
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)


def _read(body: bytes) -> dict[str, Any]:
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        raise RuntimeBroken(f"the runtime API answered what is no JSON object: {body[:200]!r}")
    return told


def _whole(told: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(told.get("runtime_id"), str) or not str(told.get("url")).startswith(("http://", "https://")):
        raise RuntimeBroken(f"the runtime API named no container (runtime_id, url): {str(told)[:200]}")
    return told
