"""MCP servers of the `mcp` package as environments, over stdio and HTTP, and our functions as an MCP server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from env_servers.adapters.mcp.functions import INVALID_REQUEST

from ..env_process import Http, env_server
from .listening import listening

pytest.importorskip("mcp.server.mcpserver", reason="the package mcp (2.x) is not installed: pip install '.[mcp]'")
pytestmark = pytest.mark.slow

NOTES = f"{sys.executable} {Path(__file__).with_name('mcp_server.py')}"
STAYS = """
import os
import time

from mcp.server.mcpserver import MCPServer

server = MCPServer("stays")


@server.tool()
def pid() -> int:
    return os.getpid()


server.run("stdio")
time.sleep(1000)
"""
FUNCTIONS = f"{sys.executable} -m env_servers.adapters.mcp.functions"
MODULE = "env_servers.adapters.mcp"


def call(name: str, **arguments: object) -> str:
    return json.dumps([{"name": name, "arguments": arguments}])


async def test_the_tools_of_a_stdio_server_are_listed_and_called_with_one_process_per_session(tmp_path):
    with env_server(MODULE, tmp_path, "--command", NOTES) as (url, _):
        async with Http(url) as http:
            _, schema, _ = await http.send("GET", "/schema")
            assert [t["function"]["name"] for t in schema["tools"]] == ["note", "divide", "crash"]
            assert schema["tools"][0]["function"]["parameters"]["properties"]["text"]["type"] == "string"
            one, two = await http.open(), await http.open()
            for step_id, count in enumerate(("1", "2")):
                _, reply, _ = await http.step(one, step_id, call("note", text="a"))
                assert (reply["outcome"], json.loads(reply["observation"]), reply["reward"]) == (
                    "ok",
                    {"result": count},
                    None,
                )
            _, reply, _ = await http.step(two, 0, call("note", text="a"))
            assert json.loads(reply["observation"]) == {"result": "1"}


async def test_a_wrong_call_is_answered_with_the_error_and_the_session_continues(tmp_path):
    with env_server(MODULE, tmp_path, "--command", NOTES, "--tools", "note", "divide") as (url, _):
        async with Http(url) as http:
            session = await http.open()
            wrong_call = {
                "no json": "bad_call",
                call("fly"): "unknown_function",
                call("crash"): "unknown_function",  # there, and not offered
                call("divide", a=1, b=0): "refused",
                call("divide", a="one", b=1): "refused",
            }
            for step_id, (action, kind) in enumerate(wrong_call.items()):
                _, reply, _ = await http.step(session, step_id, action)
                assert (reply["outcome"], reply["signals"]["error_type"]) == ("model_error", kind), reply
            _, reply, _ = await http.step(session, 9, call("divide", a=1, b=4))
            assert (reply["outcome"], json.loads(reply["observation"])) == ("ok", {"result": "0.25"})
            assert reply["signals"] == {"calls": 5, "errors": 5, "error_type": None}


async def test_a_server_that_dies_is_an_environment_error_of_its_session_only(tmp_path):
    with env_server(MODULE, tmp_path, "--command", NOTES) as (url, _):
        async with Http(url) as http:
            dying, other = await http.open(), await http.open()
            for step_id, action in enumerate((call("crash"), call("note", text="a"))):
                _, reply, _ = await http.step(dying, step_id, action)
                assert (
                    reply["outcome"] == "env_error"
                    and "McpServerFailed" in reply["signals"]["error"]
                    and reply["reward"] is None
                )
            _, reply, _ = await http.step(other, 0, call("note", text="a"))
            assert reply["outcome"] == "ok"


async def test_a_process_that_does_not_exit_is_killed_with_its_session_and_with_the_server(tmp_path):
    (tmp_path / "stays.py").write_text(STAYS)
    with env_server(MODULE, tmp_path, "--command", f"{sys.executable} {tmp_path / 'stays.py'}") as (url, _):
        async with Http(url) as http:
            sessions = [await http.open() for _ in range(3)]
            pids = [int(json.loads((await http.step(s, 0, call("pid")))[1]["observation"])["result"]) for s in sessions]
            await http.send("DELETE", f"/session/{sessions[0]}")
            while Path(f"/proc/{pids[0]}").exists():  # killed, a process is still listed for a moment
                await asyncio.sleep(0.01)
            assert all(Path(f"/proc/{pid}").exists() for pid in pids[1:])
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        await asyncio.sleep(0.01)


async def test_an_http_server_is_an_environment_until_it_stops(tmp_path):
    with (
        listening(NOTES.split()) as port,
        env_server(MODULE, tmp_path, "--url", f"http://127.0.0.1:{port}/mcp") as (url, _),
    ):
        async with Http(url) as http:
            session, crashing = await http.open(), await http.open()
            _, reply, _ = await http.step(session, 0, call("divide", a=1, b=4))
            assert json.loads(reply["observation"]) == {"result": "0.25"}
            _, reply, _ = await http.step(crashing, 0, call("crash"))
            assert reply["outcome"] == "env_error" and "McpServerFailed" in reply["signals"]["error"]
            _, reply, _ = await http.step(session, 1, call("divide", a=1, b=4))
            assert reply["outcome"] == "env_error" and "McpServerFailed" in reply["signals"]["error"]
            status, body, _ = await http.send("POST", "/reset", json={"task": {}})
            assert status == 500 and "McpServerFailed" in body["detail"]


@pytest.mark.parametrize("command", ["no-such-program", f"{sys.executable} -c pass"])
def test_a_command_that_is_not_a_server_is_refused_at_start_in_one_sentence(command, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", MODULE, "--command", command], capture_output=True, text=True, timeout=600
    )
    last_line = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last_line.startswith("mcp ") and repr(command) in last_line, done.stderr


@pytest.mark.parametrize("over", ["stdio", "http"])
async def test_our_functions_served_as_mcp_keep_each_clients_state(over, tmp_path):
    """Driven by the package's client as it comes, and by our environment."""
    from mcp import Client, MCPError, StdioServerParameters, stdio_client

    with contextlib.ExitStack() as states:
        port = (
            states.enter_context(listening([*FUNCTIONS.split(), "--domains", "files", "--http"]))
            if over == "http"
            else None
        )
        url = f"http://127.0.0.1:{port}/mcp"
        program, *args = FUNCTIONS.split()

        def client() -> Client:
            return Client(url if port else stdio_client(StdioServerParameters(command=program, args=args)))

        async with client() as one, client() as two:
            tools = (await one.list_tools()).tools
            assert {"write_file", "read_file"} <= {t.name for t in tools}
            written = await one.call_tool("write_file", {"path": "/home/a", "text": "kept"})
            assert not written.is_error, written
            assert "kept" in (await one.call_tool("read_file", {"path": "/home/a"})).content[0].text
            missing = await two.call_tool("read_file", {"path": "/home/a"})
            assert missing.is_error and "/home/a" in missing.content[0].text
            strict = await one.call_tool("read_file", {"path": 7})
            assert strict.is_error and "path" in strict.content[0].text
        if port:  # the newest version of the protocol has no sessions
            async with Client(url, mode="2026-07-28") as stateless:
                with pytest.raises(MCPError) as refused:
                    await stateless.call_tool("list_directory", {})
                assert refused.value.code == INVALID_REQUEST
        flags = ["--url", url] if port else ["--command", f"{FUNCTIONS} --domains files"]
        with env_server(MODULE, tmp_path, *flags) as (env_url, _):
            async with Http(env_url) as http:
                session = await http.open()
                _, reply, _ = await http.step(session, 0, call("write_file", path="/home/a", text="kept"))
                assert reply["outcome"] == "ok", reply
                _, reply, _ = await http.step(session, 1, call("read_file", path="/home/a"))
                assert "kept" in reply["observation"]
