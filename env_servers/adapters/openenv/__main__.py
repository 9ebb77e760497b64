"""python -m env_servers.adapters.openenv --url URL: serve any OpenEnv server as an environment.

Its schemas are read at start. No package is needed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

import aiohttp

from env_servers.adapters.http import Pool
from env_servers.flags import command_parser
from env_servers.launch import add_serving_flags, serve_env
from env_servers.processes import run_copies
from openrlhf_tir.protocol import UNKNOWN

from .env import OpenEnvEnv, Shape
from .link import OpenEnvFailed, Schema, schema_of


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    p = command_parser("env_servers.adapters.openenv", __doc__)
    add_serving_flags(p, workers=64)
    p.add_argument("--url", required=True, help="base URL of the OpenEnv server, e.g. http://127.0.0.1:8000")
    default = 'default: the only field, if there is one and it is text; "": JSON'
    p.add_argument("--field", metavar="NAME", help=f"field of actions that takes the model's text ({default})")
    p.add_argument("--show", metavar="NAME", help=f"field of observations that is shown ({default})")
    return p


async def read_schema(url: str) -> Schema:
    """Read the server's schemas. Raises OpenEnvFailed, OpenEnvMismatch."""
    async with aiohttp.ClientSession() as http:
        return await schema_of(http, url)


def main() -> None:
    """Start the server."""
    args = parser().parse_args()
    url = args.url.rstrip("/")
    try:
        shape = Shape.of(asyncio.run(read_schema(url)), args.field, args.show)
    except (OpenEnvFailed, ValueError) as e:
        sys.exit(f"openenv does not start: {e}")
    run_copies(args)
    action = f"text, the {shape.field!r} of an action" if shape.field else "a JSON object, the fields of an action"
    pool = Pool()
    serve_env(
        lambda: OpenEnvEnv(pool, url, shape),
        args,
        env="openenv",
        action=action,
        isolation=UNKNOWN,
        stateful=True,
        tools=[shape.tool],
        on_stop=pool.close,
    )


if __name__ == "__main__":
    main()
