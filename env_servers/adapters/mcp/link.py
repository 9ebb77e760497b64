"""One connection to an MCP server: open() returns its tools, call(name, arguments) a Result, close() ends it.

    stdio    a process of its own, started from a command: its state belongs to this connection alone
    HTTP     streamable HTTP with a session of its own (the handshake, so that a server with state knows its client)

One task enters and leaves the connection, as the package's cancel scopes require; calls come from any task. A server
that dies, cannot be started or speaks no version of the protocol that the package supports is McpServerFailed, never a
result.
"""

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

MOST_PAGES = 1000
"""Pages of a list of tools. A server with more names a next page for ever."""
INVALID_PARAMS = -32602
"""JSON-RPC's code for arguments that a tool does not take."""
TIMEOUT_S = 300.0
"""Seconds of the longest HTTP read; the deadline of a step ends it earlier."""

SESSION = "{session}"
SESSION_DIRECTORY = "{session_dir}"
"""Placeholders in a command or URL for the session's name, and (in a command) for an empty directory of the session.
They are for servers whose tools change files, or that separate clients by a name in the URL."""

MARK = "TIR_MCP_SESSION"
"""Environment variable by which the processes of one session's server are found."""

CLOSE_S = 10.0
"""Seconds in which a connection must close. Over stdio the package ends the process within 7 s; over HTTP it waits for
the server."""


class McpServerFailed(EnvError):
    """Raised when the MCP server died, does not start, or speaks another protocol."""


@dataclass(frozen=True, slots=True)
class Target:
    """An MCP server: a `command` that talks over stdio, or the `url` of one over HTTP.

    Attributes:
        token: Bearer token of `url`.
        environ: Variables for `command`, besides PATH, HOME and others that are not secret.
    """

    command: str | None = None
    url: str | None = None
    token: str | None = field(default=None, repr=False)
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"the MCP server {self.url or self.command!r}"


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a call.

    Attributes:
        error: True if the tool failed; the model reads its error.
        refused: True if the arguments were not accepted.
    """

    text: str
    error: bool = False
    refused: bool = False


class McpLink:
    """A connection of one session."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._closing = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None
        """The task that enters and leaves the connection."""
        self._client: Any = None
        self._unreadable: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        """Done when the server has sent a message that cannot be read: the request that it answers would wait for ever.
        """

    async def _on_message(self, message: Any) -> None:
        """Handle a notification, or the exception for a message that the package could not read.

        A line that is not a message of the protocol, for example one that the server printed, answers no request.
        """
        if isinstance(message, Exception) and _is_answer(message) and not self._unreadable.done():
            self._unreadable.set_result(message)

    async def open(self) -> list[dict[str, Any]]:
        """Connect and return the tools' schemas, in OpenAI's form. Raises McpServerFailed."""
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._hold_connection(ready), name=f"connection to {self.target}")
        await asyncio.wait({ready, self._owner}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            raise McpServerFailed(
                f"{self.target} does not answer as one: {_cause(self._owner)}. Start it by hand to see its output."
            )
        self._client = ready.result()
        return await self._tools()

    async def _hold_connection(self, ready: asyncio.Future[Any]) -> None:
        """Connect, hand out the client, and disconnect when the link is closed."""
        async with _connected(self.target, self._on_message) as client:
            ready.set_result(client)
            await self._closing.wait()

    async def _tools(self) -> list[dict[str, Any]]:
        tools = []
        cursor = None
        for _ in range(MOST_PAGES):
            page = await self._ask(self._client.list_tools(cursor=cursor), "its list of tools")
            tools += [_schema(t) for t in page.tools]
            if not (cursor := page.next_cursor):
                return tools
        raise McpServerFailed(
            f"{self.target} names a next page after {MOST_PAGES} pages of its list of tools. Its next_cursor must be"
            " null on the last page."
        )

    async def call(self, name: str, arguments: dict[str, Any]) -> Result:
        """Call a tool. Raises McpServerFailed if no answer can come any more."""
        from mcp import MCPError

        try:
            result = await self._ask(self._client.call_tool(name, arguments), f"an answer of {name!r}")
        except McpServerFailed as e:
            if isinstance(e.__cause__, MCPError) and e.__cause__.code == INVALID_PARAMS:
                return Result(e.__cause__.message, error=True, refused=True)
            raise
        text = "\n".join(_block_text(block) for block in result.content)
        if not text and (structured := getattr(result, "structured_content", None)) is not None:
            text = json.dumps(structured, ensure_ascii=False)
        return Result(text, error=bool(result.is_error))

    async def _ask(self, request: Any, expected: str) -> Any:
        """Return the reply to a request.

        Args:
            request: The awaitable of the package.
            expected: What the reply is, for messages.

        Raises:
            McpServerFailed: The connection has ended, or the server sent something unreadable.
        """
        assert self._owner is not None, "open() comes first"
        reply = asyncio.ensure_future(request)
        try:
            await asyncio.wait({reply, self._owner, self._unreadable}, return_when=asyncio.FIRST_COMPLETED)
            if reply.done():
                return reply.result()
            if self._unreadable.done():
                raise self._unreadable.result()
        except Exception as e:
            raise McpServerFailed(f"{self.target} failed instead of giving {expected}: {type(e).__name__}: {e}.") from e
        finally:
            reply.cancel()
        raise McpServerFailed(f"{self.target} ended instead of giving {expected}: {_cause(self._owner)}.")

    async def close(self) -> None:
        """End the process, or the HTTP session. Errors in that are ignored."""
        if self._owner is not None:
            self._closing.set()
            if self._client is None:  # still connecting
                self._owner.cancel()
            for _ in range(2):
                await asyncio.wait({self._owner}, timeout=CLOSE_S)
                self._owner.cancel()  # without effect on one that has ended
            if self._owner.done() and not self._owner.cancelled():
                self._owner.exception()  # retrieved, so that asyncio does not log it


def _is_answer(error: Exception) -> bool:
    """Return True if an unreadable message was meant as one of the protocol, for example one with half of a surrogate
    pair."""
    errors = getattr(error, "errors", None)
    inputs = [str(e.get("input", "")) for e in errors(include_url=False)] if callable(errors) else [str(error)]
    return any('"jsonrpc"' in text for text in inputs)


@asynccontextmanager
async def _session_names(target: Target) -> AsyncIterator[dict[str, str]]:
    """Yield the values of SESSION and SESSION_DIRECTORY for one session. The directory is removed at its end."""
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
    """Kill every process with this variable in its environment: what a session's server has started and left behind.

    A child that made itself a daemon is found this way, too.
    """
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            with suppress(OSError):  # it has ended, or belongs to another user
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)


def _fill_in(text: str, names: Mapping[str, str]) -> str:
    for placeholder, value in names.items():
        text = text.replace(placeholder, value)
    return text


@asynccontextmanager
async def _connected(target: Target, on_message: Callable[[Any], Awaitable[None]]) -> AsyncIterator[Any]:
    """Yield the package's Client, after its handshake. `on_message` is McpLink._on_message."""
    from mcp import Client, StdioServerParameters, stdio_client
    from mcp.client.streamable_http import streamable_http_client

    async with AsyncExitStack() as stack:
        transport: Any
        names = await stack.enter_async_context(_session_names(target))
        if target.command:
            program, *args = [_fill_in(argument, names) for argument in shlex.split(target.command)]
            marked = {**target.environ, MARK: names[SESSION]}
            stack.push_async_callback(asyncio.to_thread, end_marked, f"{MARK}={names[SESSION]}".encode())
            transport = stdio_client(StdioServerParameters(command=program, args=args, env=marked))
        else:
            import httpx2

            headers = {"Authorization": f"Bearer {target.token}"} if target.token else {}
            http = await stack.enter_async_context(
                httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(30.0, read=TIMEOUT_S))
            )
            transport = streamable_http_client(_fill_in(target.url or "", names), http_client=http)
        yield await stack.enter_async_context(Client(transport, mode="legacy", message_handler=on_message))


def _cause(task: asyncio.Task[None]) -> str:
    """Return why the connection's task ended; of a group of exceptions the first that is not a group."""
    error: BaseException | None = None if task.cancelled() else task.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return "the connection was closed" if error is None else f"{type(error).__name__}: {error}"


def _schema(tool: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema},
    }


def _block_text(block: Any) -> str:
    """Return a block of content as text. Other content is named with its size."""
    if block.type == "text":
        return block.text
    if block.type == "resource" and getattr(block.resource, "text", None) is not None:
        return block.resource.text
    if block.type == "resource_link":
        return f"[{block.uri}]"
    data = getattr(block, "data", "") or getattr(getattr(block, "resource", None), "blob", "")
    return f"[{block.type}, {len(data) * 3 // 4} bytes]"
