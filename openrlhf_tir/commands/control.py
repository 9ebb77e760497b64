"""control: change a run that is running: how many rollout actors it has, which servers its environments are."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

WAIT_S = 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", type=Path, help="directory of the run (--run-dir of train)")
    parser.add_argument(
        "--actors", type=int, metavar="N", help="rollout actors from now on; those too many finish their groups first"
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=URL[,URL]",
        help="servers of an environment from now on, for new sessions; open ones end where they are",
    )


def run(args: argparse.Namespace) -> int:
    from ..cluster.jobs import control
    from ..errors import ConfigError

    if not args.run_dir.is_dir():
        raise ConfigError(f"There is no run in {args.run_dir}. Give the directory that train writes (--run-dir).")
    path = args.run_dir / control.FILE
    wanted = control.read(path) if path.exists() else control.Control()
    if args.actors is not None:
        if args.actors < 1:
            raise ConfigError(f"--actors {args.actors} would leave nobody to sample. Give at least 1, or stop the run.")
        wanted.rollout_actors = args.actors
    if args.env:
        wanted.env_urls = {**(wanted.env_urls or {}), **dict(_parse(text) for text in args.env)}
    control.write(path, wanted)
    print(f"asked for: {wanted.model_dump(exclude_none=True)}", flush=True)
    deadline = time.monotonic() + WAIT_S
    while (said := control.applied(args.run_dir)) is None:
        if time.monotonic() > deadline:
            print(
                f"No controller has read {path} within {WAIT_S:g} s: the run does not train at the moment."
                " It will when it does."
            )
            return 1
        time.sleep(0.2)
    if said["error"]:
        raise ConfigError(said["error"])
    print("applied")
    return 0


def _parse(text: str) -> tuple[str, list[str]]:
    from ..envs.probe import check_url
    from ..errors import ConfigError

    name, equals, urls = text.partition("=")
    if not equals or not name or not urls:
        raise ConfigError(f"--env {text!r} is not NAME=URL[,URL]. Write --env python_tir=http://host:8100.")
    found = [u.strip().rstrip("/") for u in urls.split(",")]
    for url in found:
        check_url(url)
    return name, found
