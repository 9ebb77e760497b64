"""python -m env_servers.own path/file.py:Class --name guess: serve your own class. A run starts it for `env.file`."""

from __future__ import annotations

import argparse
import faulthandler
import functools
import sys
from collections.abc import Sequence
from typing import Any

from env_servers.flags import command_parser, json_object, seconds
from env_servers.launch import add_serving_flags, serve_env
from env_servers.processes import run_copies
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.protocol import NOT_NEEDED
from openrlhf_tir.user_code.plugins import ENVIRONMENT, load, location, wrong_keywords

CLASS_KEYWORDS = ("help", "options")
"""Flags that are not a setting of the server. As a key of --options such a name is a keyword of the class."""


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    p = command_parser("env_servers.own", __doc__)
    p.allow_abbrev = False
    p.add_argument(
        "environment",
        metavar="FILE:CLASS",
        help="'path/file.py:Class', 'path/file.py' or 'package.module:Class'; see docs/environments.md",
    )
    p.add_argument("--name", required=True, help="the environment's name, which tasks use")
    p.add_argument(
        "--options",
        type=json_object,
        default="{}",
        metavar="JSON",
        help="keyword arguments of the class, as JSON; a key with the name of one of these flags is that flag"
        " (default: %(default)s)",
    )
    p.add_argument(
        "--reset-timeout",
        type=seconds,
        default=60.0,
        metavar="S",
        help="seconds after which a reset is cancelled (default: %(default)s)",
    )
    add_serving_flags(p, workers=8)
    return p


def read(argv: Sequence[str] | None = None) -> tuple[argparse.Namespace, dict[str, Any]]:
    """Return the flags and the keyword arguments of the class. Exits as argparse does for a wrong value."""
    argv = list(sys.argv[1:] if argv is None else argv)
    p = parser()
    keywords: dict[str, Any] = {}
    for key, value in p.parse_args(argv).options.items():
        flag = key.replace("_", "-")
        if flag in CLASS_KEYWORDS or p.parse_known_args([*argv, f"--{flag}={value}"])[1]:
            keywords[key] = value
        else:
            argv.append(f"--{flag}={value}")
    return p.parse_args(argv), keywords


def check(cls: Any, keywords: dict[str, Any], setting: str) -> None:
    """Raise ConfigError if the class cannot be created with these keyword arguments, which come from `setting`."""
    if fault := wrong_keywords(cls, keywords):
        raise ConfigError(
            f"{setting} = {keywords}: {location(cls)}: {cls.__name__} is not made with them: {fault}. Give the keywords"
            " of its constructor, or flags of its server (`python -m env_servers.own --help` lists them)."
        )


def main() -> None:
    """Start the server."""
    args, keywords = read()
    faulthandler.enable()  # so that the server's log has the line of a crash in a library
    try:
        cls = load(ENVIRONMENT, args.environment)
        check(cls, keywords, "--options")
    except ConfigError as e:
        sys.exit(f"{type(e).__name__}: {e}")
    run_copies(args)
    serve_env(
        functools.partial(cls, **keywords),
        args,
        env=args.name,
        action=str(getattr(cls, "action", "text")),
        isolation=str(getattr(cls, "isolation", NOT_NEEDED)),
        stateful=bool(getattr(cls, "stateful", True)),
        tools=list(getattr(cls, "tools", [])),
        reset_timeout_s=args.reset_timeout,
    )


if __name__ == "__main__":
    main()
