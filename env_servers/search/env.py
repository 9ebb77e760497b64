"""An environment whose action is a query. The observation is the best passages, or a page of a document.

    "who wrote Faust"           the passages, written as Search-R1 inserts them, each cut at `View.snippet_chars`
    {"open": "2"}               the first page of the document that Doc 2 of the last search belongs to
    {"open": "2 page 3"}        its third page

Source: Search-R1's search_r1/llm_agent/generation.py, which has no opening (`pages`). Signals: num_results, scores,
seconds, or page, pages, document_id. An action that asks for something that does not exist has error_type:
query_too_long, malformed_open, no_such_document or no_such_page.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from env_servers.env import Env, Step

from .bm25 import Retriever
from .pages import PAGE_CHARS, document_of, pages, parse_open
from .searches import Searches

ACTION = (
    'a search query in plain words, or {"open": "N"} or {"open": "N page P"} for the document of the last search\'s'
    " passage N"
)
"""What an action is, for /schema."""
MAX_TOPK = 1000
"""Largest number of passages of one search."""
MAX_QUERY_CHARS = 8192
"""Characters of the longest query; scoring a longer one would take seconds over a large corpus."""
HOW_TO_OPEN = "Write the number of a document of the last search, and a page to read on: 2, or 2 page 3.\n"


@dataclass(frozen=True, slots=True)
class View:
    """How much is shown at once.

    Attributes:
        snippet_chars: Characters shown of each passage that a search finds; 0: all of it.
        page_chars: Characters of one page of a document.
    """

    snippet_chars: int = 0
    page_chars: int = PAGE_CHARS


def format_passages(documents: Iterable[dict[str, Any]], snippet_chars: int = 0) -> str:
    """Return a line "Doc i(Title: first line) text" for each document."""
    text = ""
    for i, document in enumerate(documents, 1):
        title, _, body = document["contents"].partition("\n")
        if snippet_chars and len(body) > snippet_chars:
            body = body[:snippet_chars].rstrip() + " ..."
        text += f"Doc {i}(Title: {title}) {body}\n"
    return text


class SearchEnv(Env):
    """An episode of searches. `task["topk"]` overrides the server's number of passages."""

    def __init__(self, retriever: Retriever, searches: Searches, topk: int, view: View) -> None:
        self._retriever = retriever
        self._searches = searches
        self._topk = topk
        self._view = view
        self._last_hits: list[int] | None = None
        """Numbers of the passages of the last search; None before the first one."""

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        """Read the number of passages from the task. Raises ValueError."""
        self._topk = int(task.get("topk", self._topk))
        if not 1 <= self._topk <= MAX_TOPK:
            raise ValueError(f'task["topk"] is {self._topk}. Send 1 to {MAX_TOPK}, or leave it out.')
        return ""

    async def step(self, action: str, deadline_s: float) -> Step:
        """Search, or open a document."""
        text = action.strip()
        target = _open_target(text)
        return await (self._search(text) if target is None else self._open(target))

    async def _search(self, query: str) -> Step:
        start = time.monotonic()
        if len(query) > MAX_QUERY_CHARS:
            text = f"The query has {len(query)} characters; at most {MAX_QUERY_CHARS} are searched for.\n"
            return _refused("query_too_long", text)
        hits = await self._searches.run(lambda stop: self._retriever.search(query, self._topk, stop))
        self._last_hits = [hit.number for hit in hits]
        signals = {
            "num_results": len(hits),
            "scores": [round(h.score, 4) for h in hits],
            "seconds": round(time.monotonic() - start, 4),
        }
        return Step(observation=format_passages((h.document for h in hits), self._view.snippet_chars), signals=signals)

    async def _open(self, target: str) -> Step:
        """Show a page of the document that a passage of the last search belongs to."""
        start = time.monotonic()
        parsed = parse_open(target)
        if parsed is None:
            return _refused("malformed_open", HOW_TO_OPEN)
        doc, page = parsed
        if self._last_hits is None:
            return _refused("no_such_document", "Nothing has been searched for yet.\n")
        if not 1 <= doc <= len(self._last_hits):
            count = len(self._last_hits)
            return _refused("no_such_document", f"There is no Doc {doc}: the last search found {count}.\n")
        number = self._last_hits[doc - 1]
        title, text = await self._searches.run(lambda stop: document_of(self._retriever, number, stop))
        all_pages = pages(text, self._view.page_chars)
        if not 1 <= page <= len(all_pages):
            return _refused("no_such_page", f"Doc {doc} has {len(all_pages)} page{'s' * (len(all_pages) > 1)}.\n")
        header = f"Doc {doc}(Title: {title}) page {page} of {len(all_pages)}"
        signals = {"page": page, "pages": len(all_pages), "document_id": self._retriever.document(number).get("id")}
        return Step(
            observation=f"{header}\n{all_pages[page - 1].strip()}\n",
            signals={**signals, "seconds": round(time.monotonic() - start, 4)},
        )


def _refused(error_type: str, text: str) -> Step:
    return Step(observation=text, outcome="model_error", signals={"error_type": error_type, "num_results": 0})


def _open_target(action: str) -> str | None:
    """Return the value of an action of the form {"open": ...}; None if the action is a query."""
    if not action.startswith("{"):
        return None
    try:
        value = json.loads(action)
    except (ValueError, RecursionError):
        return None
    return str(value["open"]) if isinstance(value, dict) and value.keys() == {"open"} else None
