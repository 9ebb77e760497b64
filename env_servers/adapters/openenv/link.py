"""OpenEnvLink: one episode on an OpenEnv server, over its WebSocket. reset(seed) -> Reply, step(action) -> Reply ...,
close()

    {"type": "reset", "data": {"seed": 7}}  ->  {"type": "observation", "data": {"observation": {...}, "reward": null,
                                            "done": false}}
    {"type": "step", "data": {...}}         ->  the same, or {"type": "error", "data": {"message", "code"}}

A connection has an environment of its own there. What is no answer of the protocol is OpenEnvFailed, no observation."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import aiohttp
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from env_servers.actions import BadAction
from env_servers.admission import CapacityFull
from openrlhf_tir.errors import EnvError

KNOWN = "openenv-core 0.3"
"""The package whose messages these are."""
MAX_REPLY = 64 << 20
"""Bytes of one message."""
RETRY_S = 1
"""When a full server is asked again; it says nothing of that itself."""
CONNECT_S = 20.0
"""Seconds for one HTTP answer, or for the WebSocket's handshake."""
CLOSE_S = 2.0
"""How long a goodbye is waited for: a server that hangs would keep each of its sessions' places."""


class OpenEnvFailed(EnvError):
    """The OpenEnv server is gone, or failed in its own code."""


class OpenEnvMismatch(OpenEnvFailed):
    """What answers there speaks another protocol, or another version of it."""


class Reply(BaseModel):
    """What reset and step give; fields that later versions add are left alone."""

    model_config = ConfigDict(extra="ignore")
    observation: dict[str, Any]
    reward: float | None = Field(None, allow_inf_nan=False)
    done: bool = False


@dataclass(frozen=True, slots=True)
class Schema:
    """JSON schemas of the server's actions and observations."""

    action: dict[str, Any]
    observation: dict[str, Any]


async def schema_of(http: aiohttp.ClientSession, url: str) -> Schema:
    """Raises OpenEnvFailed, OpenEnvMismatch."""
    try:
        async with http.get(
            f"{url}/schema", timeout=aiohttp.ClientTimeout(total=CONNECT_S), allow_redirects=False
        ) as r:
            body = await r.json(content_type=None) if r.status == 200 else f"HTTP {r.status}"
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as e:
        raise OpenEnvFailed(
            f"The OpenEnv server at {url} does not answer: {type(e).__name__}: {e}. Start it, or correct --url."
        ) from e
    if not isinstance(body, dict) or not all(isinstance(body.get(k), dict) for k in ("action", "observation")):
        raise OpenEnvMismatch(
            f"What answers at {url} is no OpenEnv server of a version that is known here ({KNOWN}): GET /schema gives"
            f" {str(body)[:200]!r} in place of the schemas of action and observation. Use a server of such a version."
        )
    return Schema(body["action"], body["observation"])


class OpenEnvLink:
    def __init__(self, http: aiohttp.ClientSession, url: str, fields: Collection[str] = ()) -> None:
        """`fields`: of the server's actions; complaints about others than these, and those that were sent, are about
        the server's own objects."""
        self._http = http
        self.url = url
        self._fields = frozenset(fields)
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def reset(self, **options: Any) -> Reply:
        """Connects. Raises OpenEnvFailed, OpenEnvMismatch, CapacityFull."""
        try:
            async with asyncio.timeout(CONNECT_S):
                self._socket = await self._http.ws_connect(
                    f"{self.url}/ws", max_msg_size=MAX_REPLY, timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S)
                )
        except aiohttp.WSServerHandshakeError as e:
            raise OpenEnvMismatch(
                f"{self.url}/ws is no WebSocket (HTTP {e.status}):"
                " a server from before OpenEnv had one, or another program."
            ) from e
        except (aiohttp.ClientError, TimeoutError, OSError) as e:
            raise OpenEnvFailed(f"The OpenEnv server at {self.url} cannot be reached: {type(e).__name__}: {e}.") from e
        try:
            return await self._ask("reset", options)
        except BadAction as e:
            raise OpenEnvFailed(f"The OpenEnv server at {self.url} refuses the reset: {e}") from e

    async def step(self, action: dict[str, Any]) -> Reply:
        """Raises BadAction, OpenEnvFailed, OpenEnvMismatch."""
        return await self._ask("step", action)

    async def _ask(self, kind: str, data: dict[str, Any]) -> Reply:
        if self._socket is None or self._socket.closed:
            raise OpenEnvFailed(
                f"The connection to the OpenEnv server at {self.url} has ended, and its episode with it."
            )
        answered = False
        try:
            await self._socket.send_json({"type": kind, "data": data})
            message = await self._socket.receive_json()
            answered = True
        except (aiohttp.ClientError, TypeError, ValueError, OSError) as e:
            # TypeError: a frame that is no text, such as the close
            raise OpenEnvFailed(
                f"The OpenEnv server at {self.url} ended the connection in place of answering {kind!r}:"
                f" {type(e).__name__}: {e}."
            ) from e
        finally:
            if not answered:  # an answer that comes late would be taken for the next one's
                await self.close()
        return self._read(kind, data, message)

    def _read(self, kind: str, sent: dict[str, Any], message: Any) -> Reply:
        data = message.get("data") if isinstance(message, dict) else None
        if isinstance(data, dict) and message.get("type") == "observation":
            try:
                return Reply.model_validate(data)
            except ValidationError as e:
                raise self._mismatch(kind, message) from e
        if not isinstance(data, dict) or message.get("type") != "error":
            raise self._mismatch(kind, message)
        said = str(data.get("message", ""))[:500]
        code = data.get("code")
        if code == "VALIDATION_ERROR":
            errors = [e for e in data.get("errors") or () if isinstance(e, dict)]
            if all(_root(e) in {None, *self._fields, *sent} for e in errors):
                raise BadAction(f"{said}: {_told(errors)}")
            said = f"{said}: {_told(errors)}"
        if code == "CAPACITY_REACHED":
            raise CapacityFull(f"the OpenEnv server at {self.url}: {said}", retry_after_s=RETRY_S)
        if code in ("UNKNOWN_TYPE", "INVALID_JSON"):
            raise self._mismatch(kind, message)
        raise OpenEnvFailed(f"The OpenEnv server at {self.url} failed in {kind}: {code}: {said}.")

    def _mismatch(self, kind: str, message: Any) -> OpenEnvMismatch:
        return OpenEnvMismatch(
            f"The OpenEnv server at {self.url} answers {kind!r} with {str(message)[:200]!r}, which is no message of"
            f" {KNOWN}. Use a server of such a version."
        )

    async def close(self) -> None:
        if self._socket is not None:
            await self._socket.close()


def _root(error: dict[str, Any]) -> str | None:
    """The outermost field that one of pydantic's errors is about; None: the whole."""
    loc = error.get("loc")
    return str(loc[0]) if isinstance(loc, list) and loc else None


def _told(errors: list[dict[str, Any]]) -> str:
    """pydantic's errors in short: field and what is wrong with it."""
    return "; ".join(
        f"{'.'.join(map(str, e['loc'] if isinstance(e.get('loc'), list) else ()))}: {e.get('msg')}" for e in errors[:8]
    )
