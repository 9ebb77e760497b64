"""The flag --die-with-parent: end this process when the process that started it ends, in whatever way (Linux)."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal

from ..errors import ConfigError

PR_SET_PDEATHSIG = 1


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
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
        raise ConfigError(f"--die-with-parent does not work here: {os.strerror(ctypes.get_errno())}. Leave it out.")
    if os.getppid() != parent:  # It ended before the call above, or never was our parent.
        raise ConfigError(
            f"--die-with-parent {parent}: the process that started this one is {os.getppid()}."
            " Was the launcher killed? Start it again."
        )
