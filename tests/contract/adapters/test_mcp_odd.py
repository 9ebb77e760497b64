"""MCP servers that answer carelessly, or keep what all sessions share."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path

import pytest

from env_servers.adapters.mcp.env import McpEnv
from env_servers.adapters.mcp.link import McpServerFailed, Target

pytest.importorskip("mcp.server.mcpserver", reason="the package mcp (2.x) is not installed: pip install '.[mcp]'")
pytestmark = pytest.mark.slow
COMMAND = f"{sys.executable} {Path(__file__).with_name('mcp_odd_server.py')}"
NAMES = ("structured", "surrogate", "chatter", "keep", "daemon")


async def said(env: McpEnv, name: str) -> dict:
    """What the tool gives; fails rather than waits where the request hangs."""
    async with asyncio.timeout(300):
        step = await env.step(json.dumps([{"name": name, "arguments": {}}]), 30)
    return json.loads(step.observation)


@pytest.fixture
async def opened():
    """Opens environments of a command, and closes them."""
    envs = []

    async def open_one(command: str = COMMAND) -> McpEnv:
        env = McpEnv(Target(command), NAMES, 1000)
        envs.append(env)
        await env.reset({}, 0)
        return env

    yield open_one
    for env in envs:
        await env.close()


async def test_an_answer_with_structured_content_only_is_shown_as_json(opened):
    assert json.loads((await said(await opened(), "structured"))["result"]) == {"sum": 3}


async def test_an_unreadable_answer_is_a_failure_and_not_waited_for(opened):
    with pytest.raises(McpServerFailed):
        await said(await opened(), "surrogate")


async def test_a_line_that_is_not_a_message_is_ignored(opened):
    assert await said(await opened(), "chatter") == {"result": "said"}


def processes() -> set[str]:
    """Pids of the odd servers and their children."""
    mine = Path(__file__).with_name("mcp_odd_server.py").name.encode()
    found = set()
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if place.name.isdigit() and mine in (place / "cmdline").read_bytes():
                found.add(place.name)
    return found


async def test_a_daemonized_child_ends_with_its_session(opened):
    before = processes()
    env = await opened()
    await said(env, "daemon")
    assert len(processes() - before) == 2
    await env.close()
    async with asyncio.timeout(300):  # killed, a process is still listed for a moment
        while processes() - before:
            await asyncio.sleep(0.01)


async def test_each_session_has_a_directory_of_its_own_which_ends_with_it(opened, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    one, two = [await opened(f"{COMMAND} {{session_dir}}") for _ in range(2)]
    assert [await said(one, "keep"), await said(one, "keep"), await said(two, "keep")] == [
        {"result": "1"},
        {"result": "2"},
        {"result": "1"},
    ]
    assert len(list(tmp_path.iterdir())) == 2
    await one.close()
    assert len(list(tmp_path.iterdir())) == 1
