"""The `show-config` command: print the whole configuration as TOML, which is itself a recipe, or a generated page of
docs."""

from __future__ import annotations

import argparse

from ..config import fidelity, reference
from ..config.flags import add_config_flags
from ..config.settings import to_toml
from .configuration import config_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    parser.add_argument("--changes", action="store_true", help="only what differs from the defaults")
    parser.add_argument(
        "--reference",
        action="store_true",
        help="every setting with its values, default and meaning, as the page docs/settings.md",
    )
    parser.add_argument(
        "--fidelity",
        action="store_true",
        help="recipes of published methods beside their official scripts' settings, as the page docs/fidelity.md",
    )
    add_config_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    if args.reference:
        print(reference.markdown(), end="")
        return 0
    if args.fidelity:
        print(fidelity.markdown(), end="")
        return 0
    cfg = config_of(args)
    print(to_toml(cfg, only_changes=args.changes), end="")
    return 0
