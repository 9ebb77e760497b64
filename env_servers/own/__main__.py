"""python -m env_servers.own path/file.py:Class --name guess: one's own environment class as a server. A run starts it for `env.file`."""

from __future__ import annotations

import argparse
import sys

from env_servers.launch import add_serving_flags, serve, serving_config
from env_servers.processes import run_copies
from env_servers.serving import create_env_app
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.plugins import ENVIRONMENT, load
from openrlhf_tir.protocol import NOT_NEEDED


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m env_servers.own", description=__doc__)
    parser.add_argument("environment", metavar="FILE:CLASS", help="'path/file.py:Class' or 'package.module:Class'; see docs/environments.md")
    parser.add_argument("--name", required=True, help="the environment's name, which tasks use")
    add_serving_flags(parser, workers=8)
    args = parser.parse_args()
    try:
        cls = load(ENVIRONMENT, args.environment)
    except ConfigError as e:
        sys.exit(f"{type(e).__name__}: {e}")
    run_copies(args)
    said = {"action": str(getattr(cls, "action", "text")), "isolation": str(getattr(cls, "isolation", NOT_NEEDED))}
    config = serving_config(args, env=args.name, stateful=bool(getattr(cls, "stateful", True)), tools=list(getattr(cls, "tools", [])), **said)
    serve(create_env_app(cls, config), args)


if __name__ == "__main__":
    main()
