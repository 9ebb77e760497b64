"""The command line: the commands, one file each, and their checks.

A command turns parsed arguments into one call of the library, and imports what it runs only when it runs.
"""

from .command_line import main

__all__ = ["main"]
