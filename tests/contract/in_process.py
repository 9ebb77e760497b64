"""An app on a real socket in this event loop, and connections to it byte by byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from openrlhf_tir.rollout.serving.app import serve


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[int]:
    """Its port. `app.state.connections` are its limits."""
    app.state.has_token = True
    server, port = await serve(app)
    try:
        yield port
    finally:
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, port: int) -> Wire:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def ask(self, method: str, path: str, body: object = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type:"
            f" application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        await self.say(head.encode() + data)

    async def status(self) -> int:
        """Of one whole answer with a Content-Length."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0
        )
        self.head, self.body = head, await self.reader.readexactly(length)
        return int(head.split()[1])

    async def rest(self) -> bytes:
        """What comes until the server hangs up."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""

    def leave(self) -> None:
        self.writer.close()


async def until(condition) -> None:
    """Wait for what another task of this loop will make true."""
    async with asyncio.timeout(300):
        while not condition():
            await asyncio.sleep(0.005)
