"""The `rewards` command: list the registered rewards, group rewards and filters, one sentence each."""

from __future__ import annotations

import argparse

from .listed import of_module, print_list


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command has no arguments."""


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from ..filters import BUILDERS
    from ..rewards import GROUP_REGISTRY, REGISTRY

    print_list(
        ((name, of_module(target.partition(":")[0])) for name, target in REGISTRY.items()),
        f"Group rewards (reward.group): {', '.join(GROUP_REGISTRY)}. Filters (filter.names): {', '.join(BUILDERS)}.\n"
        "Use one: --reward.name NAME, or several: --reward.weights NAME=1.0 NAME=0.1. Your own reward:\n"
        "--reward.name file.py:function, with a function (trajectory, task, context) -> number (docs/rewards.md).",
    )
    return 0
