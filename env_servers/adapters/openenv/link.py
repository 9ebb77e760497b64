"""One episode on an OpenEnv server, over its WebSocket: reset(seed), step(action) ..., close().

    {"type": "reset", "data": {"seed": 7}}  ->  {"type": "observation", "data": {"observation": {...}, "reward": null,
                                            "done": false}}
    {"type": "step", "data": {...}}         ->  the same, or {"type": "error", "data": {"message", "code"}}

Each connection has its own environment on the server. An answer that does not follow the protocol is OpenEnvFailed,
never an observation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import aiohttp
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from env_servers.actions import BadAction
from env_servers.admission import CapacityFull
from openrlhf_tir.errors import EnvError

KNOWN = "openenv-core 0.3"
"""The package whose messages these are."""
MAX_REPLY = 64 << 20
"""Bytes of the longest message."""
RETRY_S = 1
"""Seconds after which a full server is asked again; its error does not say."""
CONNECT_S = 20.0
"""Seconds for one HTTP reply, or for the WebSocket's handshake."""
CLOSE_S = 2.0
"""Seconds for which the closing handshake is awaited: a server that hangs would keep the slots of all its sessions."""


class OpenEnvFailed(EnvError):
    """Raised when the OpenEnv server is gone, or failed in its own code."""


class OpenEnvMismatch(OpenEnvFailed):
    """Raised when the server speaks another protocol, or another version of it."""


class Reply(BaseModel):
    """The reply to reset and step. Fields that later versions add are ignored."""

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
    """Read the schemas of a server. Raises OpenEnvFailed, OpenEnvMismatch."""
    try:
        async with http.get(
            f"{url}/schema", timeout=aiohttp.ClientTimeout(total=CONNECT_S), allow_redirects=False
        ) as r:
            body = await r.json(content_type=None, loads=from_json) if r.status == 200 else f"HTTP {r.status}"
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as e:
        raise OpenEnvFailed(
            f"The OpenEnv server at {url} does not answer: {type(e).__name__}: {e}. Start it, or correct --url."
        ) from e
    if not isinstance(body, dict) or not all(_is_schema(body.get(k)) for k in ("action", "observation")):
        raise OpenEnvMismatch(
            f"What answers at {url} is not an OpenEnv server of a version that is known here ({KNOWN}): GET /schema"
            f" gives {str(body)[:200]!r} in place of the schemas of action and observation. Use a server of such a"
            " version."
        )
    return Schema(body["action"], body["observation"])


def _is_schema(value: Any) -> bool:
    """Return True for the schema of an object: each of its properties is a schema, too."""
    properties = value.get("properties", {}) if isinstance(value, dict) else None
    return isinstance(properties, dict) and all(isinstance(part, dict) for part in properties.values())


class OpenEnvLink:
    """A connection with one episode."""

    def __init__(self, http: aiohttp.ClientSession, url: str, fields: Collection[str] = ()) -> None:
        """Create the link; `reset` connects it.

        Args:
            http: Pool of connections.
            url: URL of the server.
            fields: Fields of the server's actions. A validation error about another field, that was not sent either, is
                about the server's own objects.
        """
        self._http = http
        self.url = url
        self._fields = frozenset(fields)
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def reset(self, **options: Any) -> Reply:
        """Connect and start the episode. Raises OpenEnvFailed, OpenEnvMismatch, CapacityFull."""
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
        """Take one step. Raises BadAction, OpenEnvFailed, OpenEnvMismatch."""
        return await self._ask("step", action)

    async def _ask(self, kind: str, data: dict[str, Any]) -> Reply:
        """Send a message and return the reply to it."""
        if self._socket is None or self._socket.closed:
            raise OpenEnvFailed(
                f"The connection to the OpenEnv server at {self.url} has ended, and its episode with it."
            )
        answered = False
        try:
            await self._socket.send_json({"type": kind, "data": data})
            message = await self._socket.receive_json(loads=from_json)
            answered = True
        except (aiohttp.ClientError, TypeError, ValueError, OSError) as e:
            # TypeError: the frame is not text, for example a close
            raise OpenEnvFailed(
                f"The OpenEnv server at {self.url} ended the connection in place of answering {kind!r}:"
                f" {type(e).__name__}: {e}."
            ) from e
        finally:
            if not answered:  # a late answer would be taken as the answer to the next message
                await self.close()
        return self._read(kind, data, message)

    def _read(self, kind: str, sent: dict[str, Any], message: Any) -> Reply:
        """Return an observation, or raise the exception that an error message stands for."""
        data = message.get("data") if isinstance(message, dict) else None
        if isinstance(data, dict) and message.get("type") == "observation":
            try:
                return Reply.model_validate(data)
            except ValidationError as error:
                raise self._mismatch(kind, message) from error
        if not isinstance(data, dict) or message.get("type") != "error":
            raise self._mismatch(kind, message)
        text = str(data.get("message", ""))[:500]
        code = data.get("code")
        if code == "VALIDATION_ERROR":
            listed = data.get("errors") or []
            if not isinstance(listed, list):
                raise self._mismatch(kind, message)
            errors = [error for error in listed if isinstance(error, dict)]
            if all(_root(error) in {None, *self._fields, *sent} for error in errors):
                raise BadAction(f"{text}: {_error_list(errors)}")
            text = f"{text}: {_error_list(errors)}"
        if code == "CAPACITY_REACHED":
            raise CapacityFull(f"the OpenEnv server at {self.url}: {text}", retry_after_s=RETRY_S)
        if code in ("UNKNOWN_TYPE", "INVALID_JSON"):
            raise self._mismatch(kind, message)
        raise OpenEnvFailed(f"The OpenEnv server at {self.url} failed in {kind}: {code}: {text}.")

    def _mismatch(self, kind: str, message: Any) -> OpenEnvMismatch:
        return OpenEnvMismatch(
            f"The OpenEnv server at {self.url} answers {kind!r} with {str(message)[:200]!r}, which is not a message of"
            f" {KNOWN}. Use a server of such a version."
        )

    async def close(self) -> None:
        """Close the connection, and with it the episode."""
        if self._socket is not None:
            await self._socket.close()


def _root(error: dict[str, Any]) -> str | None:
    """Return the outermost field that one of pydantic's errors is about; None if it is about the whole."""
    loc = error.get("loc")
    return str(loc[0]) if isinstance(loc, list) and loc else None


def _error_list(errors: list[dict[str, Any]]) -> str:
    """Return field and message of pydantic's first errors."""
    parts = []
    for error in errors[:8]:
        location = error["loc"] if isinstance(error.get("loc"), list) else ()
        parts.append(f"{'.'.join(map(str, location))}: {error.get('msg')}")
    return "; ".join(parts)
