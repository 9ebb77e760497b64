"""The `envs` command: list the environments that a run can start by itself, and the turn protocols."""

from __future__ import annotations

import argparse
import textwrap

from ..config.short_help import WIDTH
from .listed import add_name, matching, of_module, print_lines, print_texts, sentence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    add_name(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from ..config.servers import SERVERS
    from ..rollout.protocols import PROTOCOLS

    texts = matching("environment", ((name, of_module(server.module)) for name, server in SERVERS.items()), args.word)
    if args.word:
        print_texts(texts)
        print(f"\n--env.name {next(iter(texts))}")
        return 0
    print_lines({name: sentence(text).removeprefix(f"{name}: ") for name, text in texts.items()})
    print(
        "\nUse one:      --env.name NAME; one that is running: --env.url http://host:port\n"
        "Your own:     --env.name mine --env.file file.py:Class (docs/environments.md)\n"
        "More of one:  openrlhf-tir envs NAME"
    )
    protocols = f"Protocols:    --env.protocol says what a call is: {', '.join(PROTOCOLS)}"
    print(textwrap.fill(protocols, WIDTH, subsequent_indent=" " * 14))
    return 0
