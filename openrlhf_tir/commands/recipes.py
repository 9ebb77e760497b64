"""The `recipes` command: list the recipes that ship with the package, one sentence each."""

from __future__ import annotations

import argparse
from pathlib import Path

from .listed import print_list, sentence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command has no arguments."""


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from ..config.settings import RECIPES

    print_list(
        ((path.stem, _comment(path)) for path in sorted(RECIPES.glob("*.toml"))),
        "Use one: openrlhf-tir train --recipe NAME ...; print it: openrlhf-tir show-config --recipe NAME --changes.",
    )
    return 0


def _comment(path: Path) -> str:
    """Return the first sentence of the comment that a recipe begins with."""
    lines = path.read_text(encoding="utf-8").splitlines()
    end = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return sentence(" ".join(line.removeprefix("#").strip() for line in lines[:end]))
