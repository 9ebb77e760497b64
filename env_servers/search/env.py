"""SearchEnv: action = query, observation = the best passages, written as Search-R1 inserts them; or a page of a
document that it found.

    "who wrote Faust"           the passages, each cut at `View.snippet_chars`
    {"open": "2"}               the first page of the document that Doc 2 of the last search is of; {"open": "2 page
                                3"}: its third

Source: Search-R1's search_r1/llm_agent/generation.py; opening is not in it (`pages`). signals: num_results, scores,
seconds, or page, pages, document_id; error_type where an action asks for nothing that there is: query_too_long,
malformed_open, no_such_document, no_such_page."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from env_servers.env import Env, Step

from .bm25 import Retriever
from .pages import PAGE_CHARS, opened, pages, whole
from .searches import Searches

ACTION = (
    'a search query in plain words, or {"open": "N"} or {"open": "N page P"} for the document of the last search\'s'
    " passage N"
)
MAX_TOPK = 1000
MAX_QUERY_CHARS = 8192
"""More is no query; scoring it would take seconds over a large corpus."""
HOW_TO_OPEN = "Write the number of a document of the last search, and a page to read on: 2, or 2 page 3.\n"


@dataclass(frozen=True, slots=True)
class View:
    """How much is shown at once."""

    snippet_chars: int = 0
    """Characters shown of each passage that a search finds; 0: all of it."""
    page_chars: int = PAGE_CHARS


def format_passages(documents: Iterable[dict[str, Any]], snippet_chars: int = 0) -> str:
    """One "Doc i(Title: first line) rest" per document, each ended by a newline."""
    text = ""
    for i, document in enumerate(documents, 1):
        title, _, rest = document["contents"].partition("\n")
        if snippet_chars and len(rest) > snippet_chars:
            rest = rest[:snippet_chars].rstrip() + " ..."
        text += f"Doc {i}(Title: {title}) {rest}\n"
    return text


class SearchEnv(Env):
    """`task["topk"]` overrides the server's number of passages."""

    def __init__(self, retriever: Retriever, searches: Searches, topk: int, view: View = View()) -> None:
        self._retriever = retriever
        self._searches = searches
        self._topk = topk
        self._view = view
        self._found: list[int] | None = None
        """Passages of the last search."""

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        self._topk = int(task.get("topk", self._topk))
        if not 1 <= self._topk <= MAX_TOPK:
            raise ValueError(f'task["topk"] is {self._topk}. Send 1 to {MAX_TOPK}, or leave it out.')
        return ""

    async def step(self, action: str, deadline_s: float) -> Step:
        text = action.strip()
        asked = _opening(text)
        return await (self._search(text) if asked is None else self._open(asked))

    async def _search(self, query: str) -> Step:
        start = time.monotonic()
        if len(query) > MAX_QUERY_CHARS:
            text = f"The query has {len(query)} characters; at most {MAX_QUERY_CHARS} are searched for.\n"
            return _refused("query_too_long", text)
        hits = await self._searches.run(lambda stop: self._retriever.search(query, self._topk, stop))
        self._found = [hit.number for hit in hits]
        signals = {
            "num_results": len(hits),
            "scores": [round(h.score, 4) for h in hits],
            "seconds": round(time.monotonic() - start, 4),
        }
        return Step(observation=format_passages((h.document for h in hits), self._view.snippet_chars), signals=signals)

    async def _open(self, asked: str) -> Step:
        start = time.monotonic()
        wanted = opened(asked)
        if wanted is None:
            return _refused("malformed_open", HOW_TO_OPEN)
        doc, page = wanted
        if self._found is None:
            return _refused("no_such_document", "Nothing has been searched for yet.\n")
        if not 1 <= doc <= len(self._found):
            return _refused("no_such_document", f"There is no Doc {doc}: the last search found {len(self._found)}.\n")
        number = self._found[doc - 1]
        title, text = await self._searches.run(lambda stop: whole(self._retriever, number, stop))
        all_pages = pages(text, self._view.page_chars)
        if not 1 <= page <= len(all_pages):
            return _refused("no_such_page", f"Doc {doc} has {len(all_pages)} page{'s' * (len(all_pages) > 1)}.\n")
        shown = f"Doc {doc}(Title: {title}) page {page} of {len(all_pages)}\n{all_pages[page - 1].strip()}\n"
        signals = {"page": page, "pages": len(all_pages), "document_id": self._retriever.document(number).get("id")}
        return Step(observation=shown, signals={**signals, "seconds": round(time.monotonic() - start, 4)})


def _refused(error_type: str, text: str) -> Step:
    return Step(observation=text, outcome="model_error", signals={"error_type": error_type, "num_results": 0})


def _opening(action: str) -> str | None:
    """What an action of the form {"open": ...} asks for; None: it is a query."""
    if not action.startswith("{"):
        return None
    try:
        value = json.loads(action)
    except (ValueError, RecursionError):
        return None
    return str(value["open"]) if isinstance(value, dict) and value.keys() == {"open"} else None
