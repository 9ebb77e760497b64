"""Container: what OpenHands' server of actions inside a container offers (runtime/action_execution_server.py). Its
words are the model's, with bounds.

execute   an action -> its observation. Not repeated: a command may have run although its answer was lost
upload    files into a directory, as one zip
download  a directory, as one zip
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import aiohttp

from .faults import RuntimeBroken, RuntimeFault
from .http import MAX_BYTES, RuntimeHttp

MARGIN_S = 10.0
"""Between the deadline that an action is given and our patience with its answer; OpenHands' own client has 5."""


class Container:
    def __init__(self, http: RuntimeHttp, url: str, runtime_id: str, key: str) -> None:
        self._http = http
        self._url = url
        self.runtime_id = runtime_id
        self._headers = {"X-Session-API-Key": key} if key else {}

    async def is_alive(self) -> bool:
        try:
            told = json.loads(await self._http.ask("GET", f"{self._url}/alive", self._headers, again=False))
            return isinstance(told, dict) and told.get("status") == "ok"
        except (RuntimeFault, ValueError):
            return False

    async def execute(self, action: str, args: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The observation: {"observation": kind, "content": text, "extras": {...}}. Raises RuntimeFault."""
        body = {"action": {"action": action, "args": dict(args), "timeout": seconds}}
        answer = await self._http.ask(
            "POST", f"{self._url}/execute_action", self._headers, again=False, seconds=seconds + MARGIN_S, json=body
        )
        try:
            told = json.loads(answer)
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict) or not isinstance(told.get("content"), str):
            raise RuntimeBroken(f"{self._url}/execute_action answered no observation: {answer[:200]!r}")
        return told

    async def upload(self, directory: str, files: Mapping[str, bytes]) -> None:
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
            again=True,
            form=form,
            params={"destination": directory, "recursive": "true"},
        )

    async def download(self, directory: str) -> dict[str, bytes]:
        """Path below `directory` -> content; what is larger than is sensible is left out. Raises RuntimeFault."""
        body = await self._http.ask(
            "GET", f"{self._url}/download_files", self._headers, again=True, params={"path": directory}
        )
        found: dict[str, bytes] = {}
        try:
            with zipfile.ZipFile(io.BytesIO(body)) as archive:
                for info in archive.infolist()[:100]:
                    with archive.open(info) as file:
                        content = file.read(MAX_BYTES + 1)
                    if len(content) <= MAX_BYTES:
                        found[info.filename] = content
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, ValueError) as e:
            raise RuntimeBroken(f"{self._url}/download_files answered no zip ({type(e).__name__}: {e}).") from None
        return found
