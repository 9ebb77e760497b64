"""The flag --die-with-parent: end this process when the process that started it ends, in whatever way (Linux)."""

from __future__ import annotations

import argparse
import os

from ..errors import ConfigError
from ..machine.parent import end_with


def add_die_with_parent(parser: argparse.ArgumentParser) -> None:
    """Add the flag to `parser`."""
    parser.add_argument(
        "--die-with-parent",
        type=int,
        metavar="PID",
        help="stop when the process PID, which started this one, ends (Linux)",
    )


def apply_die_with_parent(args: argparse.Namespace) -> None:
    """Do what the flag asks for, if it is given. Raises ConfigError as `die_with` does."""
    if args.die_with_parent:
        die_with(args.die_with_parent)


def die_with(parent: int) -> None:
    """Have the kernel send SIGTERM to this process when `parent` ends.

    Raises:
        ConfigError: `parent` is not the parent of this process, or no longer; or the kernel refuses.
    """
    try:
        is_parent = end_with(parent)
    except OSError as e:
        raise ConfigError(f"--die-with-parent does not work here: {e.strerror}. Leave it out.") from e
    if not is_parent:
        raise ConfigError(
            f"--die-with-parent {parent}: the process that started this one is {os.getppid()}."
            " Was the launcher killed? Start it again."
        )
