"""python -m env_servers.adapters.mcp.functions: our functions as an MCP server, for any MCP client. Over stdio, or with
--http PORT over HTTP.

Every client has a world of its own, made from --seed, for as long as it is connected: over stdio that is the process's
life. Over HTTP it wants the protocol's handshake, which makes a session; a client that asks for the versions is told
only those that have it."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from functools import partial
from typing import Any
from weakref import finalize

from env_servers.adapters.packages import required
from env_servers.functions.domains import DOMAINS
from env_servers.functions.grade import run
from env_servers.functions.tools import World
from openrlhf_tir.http_guard.origin import OwnOrigin

SESSION_HEADER = "mcp-session-id"
INVALID_REQUEST = -32600
"""The code that JSON-RPC has for it."""


def new_world(domains: list[str], seed: int) -> World:
    """As a functions task of that seed begins."""
    return World([DOMAINS[d](DOMAINS[d].initial(random.Random(f"{seed} {d}"))) for d in domains])


class Worlds:
    """Connection -> its world. Over HTTP a connection is known by what its handshake said, which lives as long."""

    def __init__(self, domains: list[str], seed: int) -> None:
        self._make = partial(new_world, domains, seed)
        self._by_handshake: dict[int | None, World] = {}

    def of(self, ctx: Any) -> World:
        """MCPError for a request over HTTP that belongs to no session: what it changes could not be found again."""
        from mcp import MCPError

        if ctx.request is not None and SESSION_HEADER not in ctx.request.headers:
            raise MCPError(
                INVALID_REQUEST,
                "These functions have state: begin with the handshake (initialize), which makes a session.",
            )
        said = ctx.session.client_params if ctx.request is not None else None
        key = None if said is None else id(said)
        if key not in self._by_handshake:
            self._by_handshake[key] = self._make()
            if said is not None:
                finalize(said, self._by_handshake.pop, key, None)
        return self._by_handshake[key]


def create_server(domains: list[str], seed: int, *, sessions: bool) -> Any:
    """A low-level `mcp` Server. `sessions`: only protocol versions that begin with a handshake."""
    import mcp_types as types
    from mcp.server.lowlevel import Server
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

    worlds = Worlds(domains, seed)

    async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
        schemas = worlds.of(ctx).offered()
        return types.ListToolsResult(
            tools=[
                types.Tool(name=s["name"], description=s["description"], input_schema=s["parameters"]) for s in schemas
            ]
        )

    async def call_tool(ctx: Any, params: Any) -> types.CallToolResult:
        made = run(worlds.of(ctx), params.name, params.arguments or {})
        return types.CallToolResult(
            # Half of a surrogate pair cannot be sent: the answer would never come.
            content=[types.TextContent(text=(made.error or made.result).encode("utf-8", "replace").decode())],
            is_error=bool(made.error),
        )

    async def discover(ctx: Any, params: Any) -> types.DiscoverResult:
        """Only the versions that have sessions."""
        return types.DiscoverResult(
            supported_versions=list(HANDSHAKE_PROTOCOL_VERSIONS),
            capabilities=types.ServerCapabilities(tools=types.ToolsCapability()),
        )

    server = Server("openrlhf-tir functions", on_list_tools=list_tools, on_call_tool=call_tool)
    if sessions:
        server.add_request_handler("server/discover", types.RequestParams, discover)
    return server


async def over_stdio(server: Any) -> None:
    from mcp import stdio_server

    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m env_servers.adapters.mcp.functions", description=__doc__)
    p.add_argument(
        "--domains",
        nargs="+",
        choices=sorted(DOMAINS),
        default=["files"],
        help="whose functions are served (default: files)",
    )
    p.add_argument("--seed", type=int, default=0, help="of the world that each client finds (default: %(default)s)")
    p.add_argument("--http", type=int, metavar="PORT", help="serve http://127.0.0.1:PORT/mcp instead of stdio")
    p.add_argument(
        "--list", action="store_true", help="print the functions' schemas as JSON, and end; needs no package"
    )
    return p


def main() -> None:
    args = parser().parse_args()
    if args.list:
        print(json.dumps(list(new_world(args.domains, args.seed).offered()), indent=1))
        return
    required("mcp", "mcp")
    server = create_server(args.domains, args.seed, sessions=args.http is not None)
    if args.http is None:
        asyncio.run(over_stdio(server))
        return
    import uvicorn

    print(f"our functions are served as MCP at http://127.0.0.1:{args.http}/mcp", file=sys.stderr, flush=True)
    uvicorn.run(OwnOrigin(server.streamable_http_app()), host="127.0.0.1", port=args.http, log_level="warning")


if __name__ == "__main__":
    main()
