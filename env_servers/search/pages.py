"""Pages: a document as a whole, and a piece of it at a time.

A corpus of passages, such as Search-R1's Wikipedia in pieces of 100 words, keeps those of one document one after
another under the same title: the passages around a hit that have its title are its document. A corpus of whole
documents has one passage each.

    opened("2 page 3")      (2, 3)                  what a model asks for
    whole(retriever, 17)    (title, text)
    pages(text, 2000)       pieces of at most so many characters, which end between two words
"""

from __future__ import annotations

import re

from .bm25 import Retriever
from .searches import Stop, Stopped, never

PAGE_CHARS = 2000
MAX_PASSAGES = 1000
"""The most passages of one document: a corpus without titles is not one document."""
_OPENED = re.compile(r"(?:doc(?:ument)?\s*)?(\d{1,6})(?:[\s,;]+(?:page\s*)?(\d{1,6}))?", re.IGNORECASE)


def opened(text: str) -> tuple[int, int] | None:
    """(number among the results of the last search, page), both from 1; None for a text that does not say so."""
    found = _OPENED.fullmatch(text.strip())
    return (int(found[1]), int(found[2] or 1)) if found else None


def whole(retriever: Retriever, number: int, stop: Stop = never) -> tuple[str, str]:
    """The document that a passage is of. Raises Stopped."""
    title, _, text = retriever.document(number)["contents"].partition("\n")
    before: list[str] = []
    after: list[str] = []
    for texts, step in (before, -1), (after, 1):
        at = number + step
        while text and 0 <= at < len(retriever) and len(before) + len(after) < MAX_PASSAGES:
            if stop():
                raise Stopped
            its_title, _, its_text = retriever.document(at)["contents"].partition("\n")
            if its_title != title:
                break
            texts.append(its_text)
            at += step
    return title, "\n".join([*reversed(before), text or title, *after])


def pages(text: str, size: int) -> list[str]:
    """At least one."""
    found = []
    at = 0
    while len(text) - at > size:
        space = max(text.rfind(" ", at, at + size), text.rfind("\n", at, at + size))
        end = space + 1 if space >= at + size // 2 else at + size
        found.append(text[at:end])
        at = end
    return [*found, text[at:]]
