"""python -m env_servers.adapters.verl_tool --url URL: serve a tool server of verl-tool as an environment, in
batches."""

from __future__ import annotations

import argparse
import functools
import sys

from env_servers.adapters.http import Pool
from env_servers.flags import command_parser
from env_servers.launch import add_serving_flags, serve_env
from env_servers.processes import run_copies
from openrlhf_tir.protocol import UNKNOWN

from .batches import Batches
from .env import VerlToolEnv


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    p = command_parser("env_servers.adapters.verl_tool", __doc__)
    add_serving_flags(p, workers=512)
    p.add_argument("--url", required=True, help="base URL of the tool server; requests go to URL/get_observation")
    p.add_argument(
        "--window-ms",
        type=float,
        default=5.0,
        metavar="MS",
        help="actions that arrive within MS of the first one are sent with it (default: %(default)s)",
    )
    p.add_argument(
        "--max-batch", type=int, default=64, metavar="N", help="actions of one request (default: %(default)s)"
    )
    return p


def main() -> None:
    """Start the server."""
    args = parser().parse_args()
    if args.max_batch < 1 or args.window_ms < 0:
        sys.exit(
            f"verl_tool does not start: --max-batch {args.max_batch} --window-ms {args.window_ms:g}:"
            " use 1 or more, and 0 or more."
        )
    run_copies(args)
    pool = Pool()
    batches = functools.cache(
        lambda: Batches(pool, args.url.rstrip("/"), window_s=args.window_ms / 1000, max_batch=args.max_batch)
    )

    async def stop() -> None:
        await batches().close()
        await pool.close()

    action = "text that one of the tool server's tools reads"
    serve_env(
        lambda: VerlToolEnv(batches),
        args,
        env="verl_tool",
        action=action,
        isolation=UNKNOWN,
        stateful=True,
        prefers_batches=True,
        on_stop=stop,
    )


if __name__ == "__main__":
    main()
