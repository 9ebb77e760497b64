"""McpLink: one connection to an MCP server. open() -> its tools -> call(name, arguments) -> Result ... -> close()

    stdio    a process of its own, started from a command: state is this connection's alone
    HTTP     streamable HTTP with a session of its own (the handshake, so that a server with state knows who asks)

The connection is entered and left by one task of its own, as the package's cancel scopes want; calls come from any
task. A server that dies, cannot be started or speaks no version of the protocol that the package knows is
McpServerFailed, never a result."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openrlhf_tir.errors import EnvError

INVALID_PARAMS = -32602
"""JSON-RPC's code for what the server says of arguments that its tool does not take."""
TIMEOUT_S = 300.0
"""Longest wait of one HTTP read; a step's own deadline ends it earlier."""

SESSION = "{session}"
SESSION_DIRECTORY = "{session_dir}"
"""In a command or URL: a name that is each session's own, and (in a command) an empty directory of its own. For servers
that keep what their tools change in files, or by a name in the URL."""

MARK = "TIR_MCP_SESSION"
"""Environment variable by which the processes of one session's server are known."""

CLOSE_S = 10.0
"""How long a goodbye may take. Over stdio the package ends the process within 7 s; over HTTP it waits for who hangs."""


class McpServerFailed(EnvError):
    """The MCP server died, does not start, or speaks another protocol."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where an MCP server is: a `command` that talks over stdio, or the `url` of one over HTTP."""

    command: str | None = None
    url: str | None = None
    token: str | None = field(default=None, repr=False)
    """Bearer token of `url`."""
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables for `command`, besides PATH, HOME and what else is no secret."""

    def __str__(self) -> str:
        return f"the MCP server {self.url or self.command!r}"


@dataclass(frozen=True, slots=True)
class Result:
    """What a call gave; `error`: the tool's complaint, told to the model. `refused`: the arguments were not taken."""

    text: str
    error: bool = False
    refused: bool = False


class McpLink:
    def __init__(self, target: Target) -> None:
        self.target = target
        self._leave = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None
        self._client: Any = None
        self._unreadable: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        """Done once the server has sent a message that cannot be read: the request that it answers would wait for
        ever."""

    async def _heard(self, message: Any) -> None:
        """Called by the package with notifications, and with what it could not read. What is no message of the
        protocol, such as a line that the server printed, is nobody's answer."""
        if isinstance(message, Exception) and _is_answer(message) and not self._unreadable.done():
            self._unreadable.set_result(message)

    async def open(self) -> list[dict[str, Any]]:
        """Connect; the tools' schemas, as OpenAI's. Raises McpServerFailed."""
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._own(ready), name=f"connection to {self.target}")
        await asyncio.wait({ready, self._owner}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            raise McpServerFailed(
                f"{self.target} does not answer as one: {_cause(self._owner)}. Start it by hand and look."
            )
        self._client = ready.result()
        return await self._tools()

    async def _own(self, ready: asyncio.Future[Any]) -> None:
        async with _connected(self.target, self._heard) as client:
            ready.set_result(client)
            await self._leave.wait()

    async def _tools(self) -> list[dict[str, Any]]:
        tools = []
        cursor = None
        while True:
            page = await self._ask(self._client.list_tools(cursor=cursor), "its list of tools")
            tools += [_schema(t) for t in page.tools]
            if not (cursor := page.next_cursor):
                return tools

    async def call(self, name: str, arguments: dict[str, Any]) -> Result:
        """Raises McpServerFailed when no answer can come any more."""
        from mcp import MCPError

        try:
            result = await self._ask(self._client.call_tool(name, arguments), f"an answer of {name!r}")
        except McpServerFailed as e:
            if isinstance(e.__cause__, MCPError) and e.__cause__.code == INVALID_PARAMS:
                return Result(e.__cause__.message, error=True, refused=True)
            raise
        text = "\n".join(_shown(block) for block in result.content)
        if not text and (structured := getattr(result, "structured_content", None)) is not None:
            text = json.dumps(structured, ensure_ascii=False)
        return Result(text, error=bool(result.is_error))

    async def _ask(self, request: Any, what: str) -> Any:
        """The answer, or McpServerFailed as soon as the connection has ended."""
        assert self._owner is not None, "open() comes first"
        asked = asyncio.ensure_future(request)
        try:
            await asyncio.wait({asked, self._owner, self._unreadable}, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result()
            if self._unreadable.done():
                raise self._unreadable.result()
        except Exception as e:
            raise McpServerFailed(f"{self.target} failed instead of giving {what}: {type(e).__name__}: {e}.") from e
        finally:
            asked.cancel()
        raise McpServerFailed(f"{self.target} ended instead of giving {what}: {_cause(self._owner)}.")

    async def close(self) -> None:
        """Ends the process, or the HTTP session. What fails in that is nobody's concern any more."""
        if self._owner is not None:
            self._leave.set()
            if self._client is None:  # still connecting
                self._owner.cancel()
            for _ in range(2):
                await asyncio.wait({self._owner}, timeout=CLOSE_S)
                self._owner.cancel()  # without effect on one that has ended
            if self._owner.done() and not self._owner.cancelled():
                self._owner.exception()  # looked at


def _is_answer(error: Exception) -> bool:
    """Whether what could not be read was meant as a message of the protocol, e.g. one with half of a surrogate pair."""
    errors = getattr(error, "errors", None)
    inputs = [str(e.get("input", "")) for e in errors(include_url=False)] if callable(errors) else [str(error)]
    return any('"jsonrpc"' in text for text in inputs)


@asynccontextmanager
async def _session_names(target: Target) -> AsyncIterator[dict[str, str]]:
    """Yield what SESSION and SESSION_DIRECTORY stand for in one session; the directory is removed at its end."""
    names = {SESSION: uuid.uuid4().hex}
    if SESSION_DIRECTORY not in (target.command or ""):
        yield names
        return
    directory = await asyncio.to_thread(tempfile.mkdtemp, prefix="mcp-session-")
    try:
        yield names | {SESSION_DIRECTORY: directory}
    finally:
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)


def end_marked(mark: bytes) -> None:
    """Kill every process with this variable in its environment: what a session's server has started and left behind,
    such as a child that made itself a daemon."""
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and int(place.name) != os.getpid():
            with suppress(OSError):  # gone meanwhile, or somebody else's
                if mark in (place / "environ").read_bytes().split(b"\0"):
                    os.kill(int(place.name), signal.SIGKILL)


def _named(text: str, names: Mapping[str, str]) -> str:
    for placeholder, value in names.items():
        text = text.replace(placeholder, value)
    return text


@asynccontextmanager
async def _connected(target: Target, heard: Callable[[Any], Awaitable[None]]) -> AsyncIterator[Any]:
    """The package's Client, past its handshake. `heard`: see McpLink._heard."""
    from mcp import Client, StdioServerParameters, stdio_client
    from mcp.client.streamable_http import streamable_http_client

    async with AsyncExitStack() as kept:
        transport: Any
        names = await kept.enter_async_context(_session_names(target))
        if target.command:
            program, *args = [_named(word, names) for word in shlex.split(target.command)]
            marked = {**target.environ, MARK: names[SESSION]}
            kept.push_async_callback(asyncio.to_thread, end_marked, f"{MARK}={names[SESSION]}".encode())
            transport = stdio_client(StdioServerParameters(command=program, args=args, env=marked))
        else:
            import httpx2

            headers = {"Authorization": f"Bearer {target.token}"} if target.token else {}
            http = await kept.enter_async_context(
                httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(30.0, read=TIMEOUT_S))
            )
            transport = streamable_http_client(_named(target.url or "", names), http_client=http)
        yield await kept.enter_async_context(Client(transport, mode="legacy", message_handler=heard))


def _cause(task: asyncio.Task[None]) -> str:
    """Why the connection's task ended; of a group of exceptions the first that is none."""
    e: BaseException | None = None if task.cancelled() else task.exception()
    while isinstance(e, BaseExceptionGroup):
        e = e.exceptions[0]
    return "the connection was closed" if e is None else f"{type(e).__name__}: {e}"


def _schema(tool: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema},
    }


def _shown(block: Any) -> str:
    """A block of content as text; what is none is named with its size."""
    if block.type == "text":
        return block.text
    if block.type == "resource" and getattr(block.resource, "text", None) is not None:
        return block.resource.text
    if block.type == "resource_link":
        return f"[{block.uri}]"
    data = getattr(block, "data", "") or getattr(getattr(block, "resource", None), "blob", "")
    return f"[{block.type}, {len(data) * 3 // 4} bytes]"
