"""python -m env_servers.adapters.gem: serve environments of GEM (gem-llm), by the name under which they are registered.

Use --processes N for more than one core.
"""

from __future__ import annotations

import argparse
import sys

from env_servers.adapters.packages import required
from env_servers.flags import command_parser
from env_servers.launch import add_serving_flags, serve_env
from env_servers.processes import run_copies
from openrlhf_tir.protocol import UNKNOWN

from .env import GemEnv
from .seeded_thread import SeededThread

NAME = "gem"
"""The environment's name, in /schema and in front of what a start that fails says."""


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    p = command_parser("env_servers.adapters.gem", __doc__)
    add_serving_flags(p, workers=64)
    p.add_argument(
        "--gem", metavar="NAME", help="the environment of tasks that name none, e.g. game:GuessTheNumber-v0-easy"
    )
    p.add_argument("--list", action="store_true", help="print the registered names, and exit")
    return p


def main() -> None:
    """Start the server, or list the names."""
    args = parser().parse_args()
    required("gem", "gem")
    required("gem.envs", "gem")
    from gem.envs.registration import ENV_REGISTRY

    if args.list:
        print("\n".join(sorted(ENV_REGISTRY)))
        return
    if args.gem is not None and args.gem not in ENV_REGISTRY:
        sys.exit(
            f"{NAME} does not start: --gem {args.gem} is not registered."
            f" --list prints the {len(ENV_REGISTRY)} names that are."
        )
    run_copies(args)
    thread = SeededThread()
    serve_env(
        lambda: GemEnv(thread, args.gem),
        args,
        env=NAME,
        action="the model's text, as the GEM environment reads it",
        isolation=UNKNOWN,
        stateful=True,
        on_stop=thread.close,
    )


if __name__ == "__main__":
    main()
