"""python -m env_servers.own path/file.py:Class --name guess: one's own class as a server. Runs start it: `env.file`."""

from __future__ import annotations

import argparse
import faulthandler
import functools
import json
import sys
from collections.abc import Sequence
from typing import Any

from env_servers.flags import seconds
from env_servers.launch import add_serving_flags, serve, serving_config
from env_servers.processes import run_copies
from env_servers.serving import create_env_app
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.protocol import NOT_NEEDED
from openrlhf_tir.user_code.plugins import ENVIRONMENT, load, location, wrong_keywords

OF_THE_CLASS = ("help", "options")
"""Flags that are no setting of the server: as a key of --options such a name is the class's."""


def table(text: str) -> dict[str, Any]:
    if not isinstance(found := json.loads(text), dict):
        raise ValueError(text)
    return found


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m env_servers.own", description=__doc__, allow_abbrev=False)
    p.add_argument(
        "environment",
        metavar="FILE:CLASS",
        help="'path/file.py:Class', 'path/file.py' or 'package.module:Class'; see docs/environments.md",
    )
    p.add_argument("--name", required=True, help="the environment's name, which tasks use")
    options = (
        "keywords that the class is made with, as JSON; a key that is called like a flag of these is that flag"
        " (default: %(default)s)"
    )
    p.add_argument("--options", type=table, default="{}", metavar="JSON", help=options)
    p.add_argument(
        "--reset-timeout",
        type=seconds,
        default=60.0,
        metavar="S",
        help="a reset that takes longer is given up (default: %(default)s)",
    )
    add_serving_flags(p, workers=8)
    return p


def read(argv: Sequence[str] | None = None) -> tuple[argparse.Namespace, dict[str, Any]]:
    """(flags, keywords of the class). Exits as argparse does where a flag has a wrong value."""
    argv = list(sys.argv[1:] if argv is None else argv)
    p = parser()
    keywords: dict[str, Any] = {}
    for key, value in p.parse_args(argv).options.items():
        flag = key.replace("_", "-")
        if flag in OF_THE_CLASS or p.parse_known_args([*argv, f"--{flag}={value}"])[1]:
            keywords[key] = value
        else:
            argv.append(f"--{flag}={value}")
    return p.parse_args(argv), keywords


def check(cls: Any, keywords: dict[str, Any], setting: str) -> None:
    """Raises ConfigError where the class cannot be made with these keywords, which `setting` has."""
    if wrong := wrong_keywords(cls, keywords):
        raise ConfigError(
            f"{setting} = {keywords}: {location(cls)}: {cls.__name__} is not made with them: {wrong}. Give the keywords"
            " of its constructor, or flags of its server (`python -m env_servers.own --help` lists them)."
        )


def main() -> None:
    args, keywords = read()
    faulthandler.enable()  # a crash in a library has a line then, in the server's log
    try:
        cls = load(ENVIRONMENT, args.environment)
        check(cls, keywords, "--options")
    except ConfigError as e:
        sys.exit(f"{type(e).__name__}: {e}")
    run_copies(args)
    said = {"action": str(getattr(cls, "action", "text")), "isolation": str(getattr(cls, "isolation", NOT_NEEDED))}
    config = serving_config(
        args,
        env=args.name,
        stateful=bool(getattr(cls, "stateful", True)),
        tools=list(getattr(cls, "tools", [])),
        reset_timeout_s=args.reset_timeout,
        **said,
    )
    serve(create_env_app(functools.partial(cls, **keywords), config), args)


if __name__ == "__main__":
    main()
