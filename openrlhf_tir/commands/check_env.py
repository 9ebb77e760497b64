"""check-env: URL of an environment server -> what it says of itself."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", help="base URL, e.g. http://127.0.0.1:8000")
    parser.add_argument("--timeout", type=float, default=5.0, metavar="SECONDS", help="per request [5]")


def run(args: argparse.Namespace) -> int:
    from ..env_probe import probe_env

    health, schema = probe_env(args.url, timeout_s=args.timeout)
    print(f"{args.url}: env {health.env!r}, {health.status}, isolation {health.isolation}, capacity {health.capacity}, running {health.running}, sessions {health.sessions}")
    print(f"action: {schema.action}; {'stateful' if schema.stateful else 'stateless'}; prefers batches: {'yes' if schema.prefers_batches else 'no'}")
    return 0 if health.status == "ok" else 1
