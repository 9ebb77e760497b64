"""Code blocks of the documentation, for tests that run them."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def block(page: str, language: str, holds: str) -> str:
    """The one code block of a page that holds this text."""
    blocks = [part.partition("```")[0] for part in (DOCS / page).read_text().split(f"```{language}\n")[1:]]
    (found,) = [text for text in blocks if holds in text]
    return found
