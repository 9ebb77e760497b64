"""python -m env_servers.adapters.mcp: serve the tools of any MCP server as an environment.

The tools are read at start; /schema lists them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from typing import Any

from env_servers.actions import CALLS
from env_servers.adapters.packages import required
from env_servers.flags import command_parser
from env_servers.launch import add_serving_flags, serve_env
from env_servers.processes import run_copies
from openrlhf_tir.protocol import UNKNOWN

from .env import McpEnv
from .link import SESSION, McpLink, McpServerFailed, Target

NAME = "mcp"
"""The environment's name, in /schema and in front of what a start that fails says."""
EXAMPLE = """
example:
  python -m env_servers.adapters.mcp --port 8600 \\
      --command "python -m env_servers.adapters.mcp.functions --domains files" &
  curl -s localhost:8600/schema
  curl -s localhost:8600/reset -H 'content-type: application/json' -d '{"session_id": "s1"}'
  curl -s localhost:8600/step -H 'content-type: application/json' -d '{"session_id": "s1", "step_id": 0,
      "deadline_s": 5, "action": "[{\\"name\\": \\"list_directory\\", \\"arguments\\": {}}]"}'
"""


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    p = command_parser("env_servers.adapters.mcp", __doc__, EXAMPLE)
    add_serving_flags(p, workers=64)
    server = p.add_mutually_exclusive_group(required=True)
    server.add_argument(
        "--command",
        metavar="COMMAND",
        help="a server over stdio: one process of COMMAND for each session; {session_dir} in it stands for an empty"
        " directory of the session, {session} for its name",
    )
    server.add_argument(
        "--url",
        metavar="URL",
        help="a server over streamable HTTP, e.g. http://127.0.0.1:8000/mcp: one process for all sessions, which share"
        " what it keeps for all of its clients; {session} in it stands for the session's name",
    )
    p.add_argument("--token-env", metavar="NAME", help="environment variable that holds the bearer token of --url")
    p.add_argument(
        "--pass-env",
        nargs="*",
        default=[],
        metavar="NAME",
        help="environment variables that --command gets, besides PATH and HOME",
    )
    p.add_argument("--tools", nargs="*", metavar="NAME", help="the tools that are offered (default: all)")
    p.add_argument(
        "--max-chars",
        type=int,
        default=1 << 16,
        metavar="N",
        help="characters of one result that are shown (default: %(default)s)",
    )
    p.add_argument(
        "--start-timeout",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds in which the MCP server must list its tools (default: %(default)s)",
    )
    return p


def target_of(args: argparse.Namespace) -> Target:
    """Return the MCP server of the flags. Exits if a variable is not set."""
    names = [*args.pass_env, args.token_env] if args.token_env else args.pass_env
    if missing := [name for name in names if name not in os.environ]:
        sys.exit(f"{NAME} does not start: ${', $'.join(missing)} is not set.")
    token = os.environ[args.token_env] if args.token_env else None
    return Target(args.command, args.url, token, {name: os.environ[name] for name in args.pass_env})


async def tools_of(target: Target, timeout_s: float) -> list[dict[str, Any]]:
    """Return the schemas of the server's tools. Raises McpServerFailed."""
    link = McpLink(target)
    try:
        async with asyncio.timeout(timeout_s):
            return await link.open()
    except TimeoutError:
        raise McpServerFailed(
            f"{target} has not listed its tools within {timeout_s:g} s. Raise --start-timeout."
        ) from None
    finally:
        await link.close()


def offered(tools: list[dict[str, Any]], names: list[str] | None) -> list[dict[str, Any]]:
    """Return the tools with these names; None: all. Exits for a name that the server does not have."""
    available = {tool["function"]["name"] for tool in tools}
    if unknown := sorted(set(names or []) - available):
        sys.exit(f"{NAME} does not start: --tools {' '.join(unknown)}: the server has {', '.join(sorted(available))}.")
    return [tool for tool in tools if names is None or tool["function"]["name"] in names]


def main() -> None:
    """Start the server."""
    args = parser().parse_args()
    required("mcp", "mcp")
    target = target_of(args)
    try:
        tools = offered(asyncio.run(tools_of(target, args.start_timeout)), args.tools)
    except McpServerFailed as e:
        sys.exit(f"{NAME} does not start: {e}")
    if args.url and SESSION not in args.url:
        print(
            f"mcp: all sessions share what the server at {args.url} keeps for all of its clients. If its tools"
            " change anything, start one process for each session with --command, or put {session} into the URL of a"
            " server that separates its clients by it.",
            file=sys.stderr,
            flush=True,
        )
    run_copies(args)
    names = frozenset(t["function"]["name"] for t in tools)
    serve_env(
        lambda: McpEnv(target, names, args.max_chars),
        args,
        env=NAME,
        action=CALLS,
        isolation=UNKNOWN,
        stateful=True,
        tools=tools,
    )


if __name__ == "__main__":
    main()
