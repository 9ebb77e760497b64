"""Talk to OpenHands' server of actions inside a container (runtime/action_execution_server.py). Its answers may be the
model's and have bounds.

execute   an action -> its observation. Not repeated: a command may have run although its answer was lost
upload    files into a directory, as one zip
download  a directory, as one zip
"""

from __future__ import annotations

import asyncio
import io
import json
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from typing import Any

import aiohttp

from .faults import RuntimeBroken, RuntimeFault
from .http import MAX_BYTES, RuntimeHttp

MARGIN_S = 10.0
"""Seconds added to the deadline of an action until its answer must come; OpenHands' own client adds 5."""


MAX_TOTAL_BYTES = 4 * MAX_BYTES
"""Bytes of all unpacked files of a download together. A small zip may unpack to gigabytes."""


class Container:
    """One running container."""

    def __init__(self, http: RuntimeHttp, url: str, runtime_id: str, key: str) -> None:
        self._http = http
        self._url = url
        self.runtime_id = runtime_id
        self._headers = {"X-Session-API-Key": key} if key else {}

    async def is_alive(self) -> bool:
        """Return True if the server of actions answers."""
        try:
            reply = json.loads(await self._http.ask("GET", f"{self._url}/alive", self._headers, repeatable=False))
            return isinstance(reply, dict) and reply.get("status") == "ok"
        except (RuntimeFault, ValueError, RecursionError):
            return False

    async def execute(self, action: str, args: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Run an action and return its observation: {"observation": kind, "content": text, "extras": {...}}. Raises
        RuntimeFault."""
        body = {"action": {"action": action, "args": dict(args), "timeout": seconds}}
        answer = await self._http.ask(
            "POST",
            f"{self._url}/execute_action",
            self._headers,
            repeatable=False,
            seconds=seconds + MARGIN_S,
            json=body,
        )
        try:
            observation = json.loads(answer)
        except (ValueError, RecursionError):
            observation = None
        if not isinstance(observation, dict) or not isinstance(observation.get("content"), str):
            raise RuntimeBroken(f"{self._url}/execute_action answered no observation: {answer[:200]!r}")
        return observation

    async def upload(self, directory: str, files: Mapping[str, bytes]) -> None:
        """Write files into a directory. Raises RuntimeFault."""
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)

        def form() -> aiohttp.FormData:
            data = aiohttp.FormData()
            data.add_field("file", packed.getvalue(), filename="files.zip", content_type="application/zip")
            return data

        await self._http.ask(
            "POST",
            f"{self._url}/upload_file",
            self._headers,
            repeatable=True,
            form=form,
            params={"destination": directory, "recursive": "true"},
        )

    async def download(self, directory: str) -> dict[str, bytes]:
        """Return the files below a directory, by path.

        A file of more than MAX_BYTES is left out, and one that exceeds what those before it leave of MAX_TOTAL_BYTES.

        Raises:
            RuntimeFault: The container failed, or answered no zip.
        """
        body = await self._http.ask(
            "GET", f"{self._url}/download_files", self._headers, repeatable=True, params={"path": directory}
        )
        files: dict[str, bytes] = {}
        bytes_left = MAX_TOTAL_BYTES
        try:
            with zipfile.ZipFile(io.BytesIO(body)) as archive:
                for info in archive.infolist()[:100]:
                    limit = min(MAX_BYTES, bytes_left)
                    with archive.open(info) as file:
                        content = file.read(limit + 1)
                    if len(content) <= limit:
                        files[info.filename] = content
                        bytes_left -= len(content)
        except Exception as e:  # each kind of compression has its own exceptions
            raise RuntimeBroken(f"{self._url}/download_files answered no zip ({type(e).__name__}: {e}).") from None
        return files


class Containers(ABC):
    """Where containers come from.

    Attributes:
        running: Number of containers that this server has now.
        stops_failed: Number of containers that were told to stop and did not.
    """

    def __init__(self, http: RuntimeHttp) -> None:
        """Create the client. `http` sends the requests to the containers."""
        self._http = http
        self._stopping: set[asyncio.Task[None]] = set()
        self.running = 0
        self.stops_failed = 0

    @abstractmethod
    async def start(self, image: str) -> Container:
        """Start a container and wait until it answers. The caller must stop it. Raises RuntimeFault."""

    @abstractmethod
    def stop(self, container: Container) -> None:
        """Stop a container in the background. Only `close` waits for it."""

    async def close(self) -> None:
        """Wait until all containers are stopped, and close the connections."""
        while self._stopping:
            await asyncio.wait(self._stopping)
        await self._http.close()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="stop a container")
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)
