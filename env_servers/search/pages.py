"""Find the document that a passage belongs to, and cut it into pages.

A corpus of passages, such as Search-R1's Wikipedia in pieces of 100 words, has those of one document one after another
under the same title: the passages around a hit with the same title are its document. A corpus of whole documents has
one passage each.

    parse_open("2 page 3")        (2, 3)                  what a model asks for
    document_of(retriever, 17)    (title, text)
    pages(text, 2000)             pieces of at most 2,000 characters, which end between two words
"""

from __future__ import annotations

import re

from .bm25 import Retriever
from .searches import Stop, Stopped, never

PAGE_CHARS = 2000
"""Default size of a page in characters."""
MAX_PASSAGES = 1000
"""Largest number of passages of one document: in a corpus without titles all passages have the same one."""
_OPENED = re.compile(r"(?:doc(?:ument)?\s*)?(\d{1,6})(?:[\s,;]+(?:page\s*)?(\d{1,6}))?", re.IGNORECASE)


def parse_open(text: str) -> tuple[int, int] | None:
    """Return the number of a hit and a page, both from 1; None if the text does not name them."""
    match = _OPENED.fullmatch(text.strip())
    return (int(match[1]), int(match[2] or 1)) if match else None


def document_of(retriever: Retriever, number: int, stop: Stop = never) -> tuple[str, str]:
    """Return title and text of the document that a passage belongs to. Raises Stopped."""
    title, _, text = retriever.document(number)["contents"].partition("\n")
    before: list[str] = []
    after: list[str] = []
    for texts, step in (before, -1), (after, 1):
        at = number + step
        while text and 0 <= at < len(retriever) and len(before) + len(after) < MAX_PASSAGES:
            if stop():
                raise Stopped
            neighbour_title, _, neighbour_text = retriever.document(at)["contents"].partition("\n")
            if neighbour_title != title:
                break
            texts.append(neighbour_text)
            at += step
    return title, "\n".join([*reversed(before), text or title, *after])


def pages(text: str, size: int) -> list[str]:
    """Return the text in pieces of at most `size` characters, at least one piece."""
    pieces = []
    at = 0
    while len(text) - at > size:
        space = max(text.rfind(" ", at, at + size), text.rfind("\n", at, at + size))
        # a word of more than half a page is cut
        end = space + 1 if space >= at + size // 2 else at + size
        pieces.append(text[at:end])
        at = end
    return [*pieces, text[at:]]
