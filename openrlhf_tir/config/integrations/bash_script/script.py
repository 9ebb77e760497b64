"""What a script would do, as far as reading tells: its commands, the files that it writes, and sentences about it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Command:
    """A command that the script would start."""

    words: tuple[str, ...]
    line: int
    """The line of the outermost script on which it begins, counted from 1."""


@dataclass
class Script:
    """What a script would do, as far as reading tells."""

    commands: list[Command] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Sentences about what bash does that a reader may not expect, and about what was assumed."""
    files: dict[str, str] = field(default_factory=dict)
    """Path -> text of the files that the script writes from here-documents: `cat > reward.py <<EOF`."""

    def note(self, sentence: str) -> None:
        """Add a sentence once."""
        if sentence not in self.notes:
            self.notes.append(sentence)
