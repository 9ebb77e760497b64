"""The `rewards` command: list the registered rewards, group rewards and filters."""

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
    from ..config.rewards import REWARDS
    from ..filters import BUILDERS
    from ..rewards import GROUP_REGISTRY

    items = ((name, of_module(reward.function.partition(":")[0])) for name, reward in REWARDS.items())
    texts = matching("reward", items, args.word)
    if args.word:
        print_texts(texts)
        print(f"\n--reward.name {next(iter(texts))}")
        return 0
    print_lines({name: sentence(text) for name, text in texts.items()})
    print(
        "\nUse one:      --reward.name NAME, or several: --reward.weights NAME=1 NAME=0.1\n"
        "Your own:     --reward.name file.py:function (docs/rewards.md)\n"
        f"Of a group:   --reward.group {', '.join(GROUP_REGISTRY)}\n"
        "More of one:  openrlhf-tir rewards NAME"
    )
    filters = f"Filters:      --filter.names takes {', '.join(BUILDERS)}"
    print(textwrap.fill(filters, WIDTH, subsequent_indent=" " * 14))
    return 0
