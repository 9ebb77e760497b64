"""Ends: why reading a script, or a function of it, stops; and how much of one is read."""

from __future__ import annotations

MAX_COMMANDS = 500
"""Commands that are read of one script: loops and recursive functions end here."""
MAX_FILE = 1 << 20
"""Bytes of a file that a script reads, beyond which it is none of arguments."""
MAX_ROUNDS = 200
"""Rounds of a loop over the script's arguments."""
MAX_DEPTH = 40
"""Scripts, functions and substitutions inside one another."""


class Exit(Exception):
    """The script ends here."""


class Return(Exception):
    """The function ends here."""


class Break(Exception):
    """The loop ends here."""


class Continue(Exception):
    """The next round of the loop begins here."""


class Enough(Exception):
    """More commands, or deeper, than a script of training has."""


ENDS = (Exit, Return, Break, Continue)
"""What a script may do behind a condition instead of going on."""
