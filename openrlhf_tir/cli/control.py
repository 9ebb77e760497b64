"""The `control` command: change the number of rollout actors, or the servers of the environments, of a run that is
running."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from ..config.numbers import whole

WAIT_S = 20.0
"""Seconds to wait for the run to apply the change."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    parser.add_argument("run_dir", type=Path, help="directory of the run (--run-dir of train)")
    parser.add_argument(
        "--actors",
        type=whole(at_least=1),
        metavar="N",
        help="new number of rollout actors; surplus ones finish their groups first",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=URL[,URL]",
        help="new servers of an environment, for new sessions; open sessions end where they are",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from ..cluster import run_lock
    from ..cluster.jobs import control
    from ..errors import ConfigError

    if not (args.run_dir / run_lock.FILE).exists():
        raise ConfigError(f"There is no run in {args.run_dir}. Give the directory that train writes (--run-dir).")
    path = args.run_dir / control.FILE
    wanted = control.read(path) if path.exists() else control.Control()
    if args.actors is not None:
        wanted.rollout_actors = args.actors
    if args.env:
        wanted.env_urls = {**(wanted.env_urls or {}), **dict(_parse(text) for text in args.env)}
    if wanted == control.Control():
        raise ConfigError("Nothing to change. Give --actors or --env.")
    control.write(path, wanted)
    print(f"requested: {wanted.model_dump(exclude_none=True)}", flush=True)
    deadline = time.monotonic() + WAIT_S
    while (answer := control.applied(args.run_dir)) is None:
        if time.monotonic() > deadline:
            print(
                f"No controller has read {path} within {WAIT_S:g} s: the run is not training now. It applies the"
                " change when it trains again."
            )
            return 1
        time.sleep(0.2)
    if answer["error"]:
        raise ConfigError(answer["error"])
    print("applied")
    return 0


def _parse(text: str) -> tuple[str, list[str]]:
    from ..errors import ConfigError
    from ..rollout.environment_client.probe import check_url

    name, equals, urls = text.partition("=")
    if not equals or not name or not urls:
        raise ConfigError(f"--env {text!r} is not NAME=URL[,URL]. Write --env python_tir=http://host:8100.")
    addresses = [address.strip().rstrip("/") for address in urls.split(",")]
    for url in addresses:
        check_url(url)
    return name, addresses
