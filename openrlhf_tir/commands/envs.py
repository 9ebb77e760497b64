"""envs: the environments that a run can start by itself, and the turn protocols, one sentence each."""

from __future__ import annotations

import argparse

from .listed import of_module, print_list


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It takes none."""


def run(args: argparse.Namespace) -> int:
    from ..cluster.env_process import SERVERS
    from ..episodes.turns import PROTOCOLS

    print_list(
        ((name, of_module(module)) for name, module in SERVERS.items()),
        f"Turn protocols (env.protocol), which say what a call is: {', '.join(PROTOCOLS)}.\n"
        "Use one: --env.name NAME. A server that runs: --env.url http://host:port. A class of your own:\n"
        "--env.name mine --env.file file.py:Class (docs/environments.md).",
    )
    return 0
