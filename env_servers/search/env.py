"""SearchEnv: action = query, observation = the best passages, written as Search-R1 inserts them. Stateless.

Source: Search-R1's search_r1/llm_agent/generation.py. signals: num_results, scores, seconds; error_type = "query_too_long" where it is.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from env_servers.env import Env, Step

from .bm25 import Retriever
from .searches import Searches

MAX_TOPK = 1000
MAX_QUERY_CHARS = 8192
"""More is no query; scoring it would take seconds over a large corpus."""


def format_passages(documents: Iterable[dict[str, Any]]) -> str:
    """One "Doc i(Title: first line) rest" per document, each ended by a newline."""
    text = ""
    for i, document in enumerate(documents, 1):
        title, _, rest = document["contents"].partition("\n")
        text += f"Doc {i}(Title: {title}) {rest}\n"
    return text


class SearchEnv(Env):
    """`task["topk"]` overrides the server's number of passages."""

    def __init__(self, retriever: Retriever, searches: Searches, topk: int) -> None:
        self._retriever, self._searches, self._topk = retriever, searches, topk

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        self._topk = int(task.get("topk", self._topk))
        if not 1 <= self._topk <= MAX_TOPK:
            raise ValueError(f'task["topk"] is {self._topk}. Send 1 to {MAX_TOPK}, or leave it out.')
        return ""

    async def step(self, action: str, deadline_s: float) -> Step:
        query, start = action.strip(), time.monotonic()
        if len(query) > MAX_QUERY_CHARS:
            text = f"The query has {len(query)} characters; at most {MAX_QUERY_CHARS} are searched for.\n"
            return Step(observation=text, outcome="model_error", signals={"error_type": "query_too_long", "num_results": 0})
        hits = await self._searches.run(lambda stop: self._retriever.search(query, self._topk, stop))
        signals = {"num_results": len(hits), "scores": [round(h.score, 4) for h in hits], "seconds": round(time.monotonic() - start, 4)}
        return Step(observation=format_passages(h.document for h in hits), signals=signals)
