"""Print a line to the person who watches a command."""

from __future__ import annotations

from rich.console import Console


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print a text as it is: not wrapped, not coloured by its words, and without taking [words] for markup.

    An error of a user's code may have any text, and rich raises an error for a "[/INST]" that closes nothing.
    """
    console.print(text, style=style, soft_wrap=True, highlight=False, markup=False)
