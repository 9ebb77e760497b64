"""The command line: the commands, one file each, and their checks.

A command turns parsed arguments into one call of the library, and imports what it runs only when it runs.
"""

import sys
from collections.abc import Sequence

from .exit_codes import INTERRUPTED

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code, one of exit_codes.py.

    Ctrl-C counts from the first import on: those of the commands take seconds on a busy machine.
    """
    try:
        from . import command_line

        return command_line.main(argv)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED
