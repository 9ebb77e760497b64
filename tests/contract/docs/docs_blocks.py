"""Code blocks and tables of the documentation, for tests that run them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

REPO = Path(__file__).resolve().parents[3]
DOCS = REPO / "docs"
PAGES = [*sorted(DOCS.glob("*.md")), REPO / "README.md", REPO / "CONTRIBUTING.md"]


class Block(NamedTuple):
    """`page`: the file's name; `line`: of the opening fence, from 1; `language`: "" for a block that names none."""

    page: str
    line: int
    language: str
    text: str


def blocks() -> list[Block]:
    """Every fenced block of every page, in order."""
    found = []
    for path in PAGES:
        fence, start, language, lines = "", 0, "", []
        for number, line in enumerate(path.read_text().splitlines(), 1):
            mark = re.match(r"(`{3,})([\w-]*)$", line)
            if mark and not fence:
                fence, start, language, lines = mark[1], number, mark[2], []
            elif line.rstrip() == fence and fence:
                found.append(Block(path.name, start, language, "\n".join(lines) + "\n"))
                fence = ""
            else:
                lines.append(line)
        assert not fence, f"{path.name}:{start}: the block is not closed"
    return found


def block(page: str, language: str, holds: str) -> str:
    """The one code block of a page that holds this text."""
    (found,) = [b.text for b in blocks() if (b.page, b.language) == (page, language) and holds in b.text]
    return found


def glossary() -> list[str]:
    """The metrics that docs/metrics.md explains, one or several in a row's first cell; <name> stands for what a run
    fills in."""
    cells = re.findall(r"^\| (`[^|]+`) \|", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def unexplained(logged: set[str]) -> list[str]:
    """Of the metrics that a run has logged, those that the glossary lacks."""
    patterns = [re.compile(re.sub(r"<\w+>", r"[\\w.:/-]+", name)) for name in glossary()]
    return sorted(name for name in logged if not any(p.fullmatch(name) for p in patterns))
