"""The `envs` command: list the environments that a run can start by itself, and the turn protocols."""

from __future__ import annotations

import argparse

from .listed import of_module, print_list


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command has no arguments."""


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from ..cluster.env_process import SERVERS
    from ..episodes.turns import PROTOCOLS

    print_list(
        ((name, of_module(module)) for name, module in SERVERS.items()),
        f"Turn protocols (env.protocol), which say what a call is: {', '.join(PROTOCOLS)}.\n"
        "Use one: --env.name NAME. A server that is running: --env.url http://host:port. Your own class:\n"
        "--env.name mine --env.file file.py:Class (docs/environments.md).",
    )
    return 0
