"""Start and end of a connection to an MCP server, without the package: stand-ins for its client."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from env_servers.adapters.mcp import link as module
from env_servers.adapters.mcp.link import McpLink, McpServerFailed, Target


class Client:
    """Has no tools."""

    async def list_tools(self, cursor):
        return type("Page", (), {"tools": [], "next_cursor": None})


@pytest.mark.parametrize("end", ["is said", "hangs", "fails"])
async def test_a_connection_whose_end_hangs_or_fails_is_closed(end, monkeypatch):
    left = asyncio.Event()

    @asynccontextmanager
    async def connected(target, heard):
        try:
            yield Client()
            if end == "hangs":
                await asyncio.Event().wait()
            if end == "fails":
                raise RuntimeError("no DELETE here")
        finally:
            left.set()

    monkeypatch.setattr(module, "_connected", connected)
    monkeypatch.setattr(module, "CLOSE_S", 0.05)
    link = McpLink(Target(url="http://127.0.0.1:1/mcp"))
    await link.open()
    async with asyncio.timeout(300):
        await link.close()
    assert left.is_set()


async def test_a_list_of_tools_without_a_last_page_is_the_failure_of_the_server(monkeypatch):
    class Endless:
        async def list_tools(self, cursor):
            return type("Page", (), {"tools": [], "next_cursor": "more"})

    @asynccontextmanager
    async def connected(target, heard):
        yield Endless()

    monkeypatch.setattr(module, "_connected", connected)
    link = McpLink(Target(command="endless"))
    with pytest.raises(McpServerFailed):
        await link.open()
    await link.close()


async def test_a_connection_that_is_still_being_opened_is_cancelled(monkeypatch):
    begun = asyncio.Event()

    @asynccontextmanager
    async def connected(target, heard):
        begun.set()
        await asyncio.Event().wait()
        yield Client()

    monkeypatch.setattr(module, "_connected", connected)
    link = McpLink(Target(command="hangs"))
    opening = asyncio.create_task(link.open())
    await begun.wait()
    opening.cancel()
    async with asyncio.timeout(300):
        await link.close()
    assert link._owner is not None and link._owner.done()
