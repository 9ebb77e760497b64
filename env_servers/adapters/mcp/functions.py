"""python -m env_servers.adapters.mcp.functions: serve our functions as an MCP server, over stdio or with --http PORT.

Every client has its own world, generated from --seed, while it is connected: over stdio for the life of the process.
Over HTTP a client must begin with the protocol's handshake, which makes a session; the list of supported versions has
only those with a handshake.
"""

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
from env_servers.flags import command_parser
from env_servers.functions.domains import DOMAINS
from env_servers.functions.grade import run
from env_servers.functions.tools import World
from openrlhf_tir.http_guard.origin import OwnOrigin

SESSION_HEADER = "mcp-session-id"
INVALID_REQUEST = -32600
"""JSON-RPC's code of an invalid request."""


def new_world(domains: list[str], seed: int) -> World:
    """Return a world in the state with which a functions task of that seed begins."""
    return World([DOMAINS[d](DOMAINS[d].initial(random.Random(f"{seed} {d}"))) for d in domains])


class Worlds:
    """The world of each connection. Over HTTP a connection is known by the parameters of its handshake, which live as
    long."""

    def __init__(self, domains: list[str], seed: int) -> None:
        self._make = partial(new_world, domains, seed)
        self._by_handshake: dict[int | None, World] = {}

    def of(self, ctx: Any) -> World:
        """Return the world of a request.

        Raises:
            MCPError: A request over HTTP belongs to no session, so that its changes could not be found again.
        """
        from mcp import MCPError

        if ctx.request is not None and SESSION_HEADER not in ctx.request.headers:
            raise MCPError(
                INVALID_REQUEST,
                "These functions have state: begin with the handshake (initialize), which makes a session.",
            )
        handshake = ctx.session.client_params if ctx.request is not None else None
        key = None if handshake is None else id(handshake)
        if key not in self._by_handshake:
            self._by_handshake[key] = self._make()
            if handshake is not None:
                finalize(handshake, self._by_handshake.pop, key, None)
        return self._by_handshake[key]


def create_server(domains: list[str], seed: int, *, sessions: bool) -> Any:
    """Return a low-level `mcp` Server.

    Args:
        domains: Domains whose functions are served.
        seed: Seed of the worlds.
        sessions: Whether only protocol versions with a handshake are supported.
    """
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
        outcome = run(worlds.of(ctx), params.name, params.arguments or {})
        return types.CallToolResult(
            # Half of a surrogate pair cannot be sent: the client would never get an answer.
            content=[types.TextContent(text=(outcome.error or outcome.result).encode("utf-8", "replace").decode())],
            is_error=bool(outcome.error),
        )

    async def discover(ctx: Any, params: Any) -> types.DiscoverResult:
        """List only the versions that have sessions."""
        return types.DiscoverResult(
            supported_versions=list(HANDSHAKE_PROTOCOL_VERSIONS),
            capabilities=types.ServerCapabilities(tools=types.ToolsCapability()),
        )

    server = Server("openrlhf-tir functions", on_list_tools=list_tools, on_call_tool=call_tool)
    if sessions:
        server.add_request_handler("server/discover", types.RequestParams, discover)
    return server


async def over_stdio(server: Any) -> None:
    """Serve one client over stdin and stdout."""
    from mcp import stdio_server

    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    p = command_parser("env_servers.adapters.mcp.functions", __doc__)
    p.add_argument(
        "--domains",
        nargs="+",
        choices=sorted(DOMAINS),
        default=["files"],
        help="domains whose functions are served (default: files)",
    )
    p.add_argument("--seed", type=int, default=0, help="seed of each client's world (default: %(default)s)")
    p.add_argument("--http", type=int, metavar="PORT", help="serve http://127.0.0.1:PORT/mcp instead of stdio")
    p.add_argument(
        "--list", action="store_true", help="print the functions' schemas as JSON, and exit; needs no package"
    )
    return p


def main() -> None:
    """Start the server."""
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
