"""Read a bash script without running it: which commands would it start, with which words?

    text -> tree-sitter's syntax tree -> walk in order: assignments, arrays, tests, loops, functions -> Command(words)

Nothing is executed and nothing is written. Variables, arrays, quotes, here-documents and the few commands that only
compute a path (`dirname`, `cd X && pwd`, ...) are evaluated as bash does. What only a run can tell, such as
`$(nvidia-smi -L | wc -l)`, becomes an `unknown` text that keeps its source, so that whoever reads the words can say so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ....errors import ConfigError
from .script import Command, Script
from .statements import Statements
from .unknown_text import readable, unknowns

__all__ = ["Command", "Script", "read_script", "read_text", "readable", "unknowns"]


def read_script(
    path: Path,
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
    arguments: Sequence[str] = (),
) -> Script:
    """Return the commands of a script file, called with `arguments`. Raises ConfigError for a file that cannot be
    read."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is not text in UTF-8"
        raise ConfigError(f"The script {path} cannot be read: {reason}. Give the path of a bash script.") from None
    return read_text(text, str(path), environ, cwd, arguments)


def read_text(
    text: str,
    name: str = "bash",
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
    arguments: Sequence[str] = (),
) -> Script:
    """Return the commands of a script's text; `name` is its $0."""
    walker = Statements(name, environ, cwd or Path.cwd())
    walker.positional = list(arguments)
    walker.run(text)
    return walker.script
