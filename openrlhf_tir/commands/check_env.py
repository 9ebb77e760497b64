"""check-env: URL of an environment server -> what it says of itself."""

from __future__ import annotations

import argparse
import os


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", help="base URL, e.g. http://127.0.0.1:8000")
    parser.add_argument("--timeout", type=float, default=5.0, metavar="SECONDS", help="per request [5]")
    parser.add_argument("--token-env", default="TIR_ENV_TOKEN", metavar="NAME", help="environment variable that holds the bearer token [TIR_ENV_TOKEN]")


def run(args: argparse.Namespace) -> int:
    from ..env_probe import probe_env

    health, schema = probe_env(args.url, token=os.environ.get(args.token_env), timeout_s=args.timeout)
    print(
        f"{args.url}: env {health.env!r}, {health.status}, isolation {health.isolation}, "
        f"capacity {health.capacity}, running {health.running}, sessions {health.sessions}"
    )
    print(f"action: {schema.action}; {'stateful' if schema.stateful else 'stateless'}; prefers batches: {'yes' if schema.prefers_batches else 'no'}")
    return 0 if health.status == "ok" else 1
