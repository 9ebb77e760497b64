"""The `recipes` command: list the recipes that ship with the package, those for a small machine first."""

from __future__ import annotations

import argparse
from pathlib import Path

from .listed import add_name, matching, print_columns, print_lines, print_texts, sentence

SMALL = ("_cpu", "_one_gpu")
"""Ends of the names of recipes that run on two CPU cores, or on one GPU."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    add_name(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from ..config.settings import RECIPES

    texts = matching("recipe", ((path.stem, comment(path)) for path in sorted(RECIPES.glob("*.toml"))), args.word)
    if args.word:
        print_texts(texts)
        print(f"\nopenrlhf-tir train --recipe {next(iter(texts))} ...")
        return 0
    print("On two CPU cores, or one GPU:")
    print_lines({name: sentence(text) for name, text in texts.items() if name.endswith(SMALL)}, "  ")
    print("Published methods, on a cluster (openrlhf-tir recipes WORD says what each is):")
    print_columns(name for name in texts if not name.endswith(SMALL))
    print("train --recipe NAME uses one, show-config --recipe NAME --changes prints it.")
    return 0


def comment(path: Path) -> str:
    """Return the comment that a recipe begins with, in one line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    end = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return " ".join(line.removeprefix("#").strip() for line in lines[:end])
