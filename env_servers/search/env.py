"""SearchEnv: action = query, observation = the best passages, written as Search-R1 inserts them. Stateless.

Source: Search-R1's search_r1/llm_agent/generation.py. signals: num_results, scores, seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from env_servers.env import Env, Step

from .bm25 import Retriever


def format_passages(documents: Iterable[dict[str, Any]]) -> str:
    """One "Doc i(Title: first line) rest" per document, each ended by a newline."""
    text = ""
    for i, document in enumerate(documents, 1):
        title, _, rest = document["contents"].partition("\n")
        text += f"Doc {i}(Title: {title}) {rest}\n"
    return text


class SearchEnv(Env):
    """`task["topk"]` overrides the server's number of passages."""

    def __init__(self, retriever: Retriever, topk: int) -> None:
        self._retriever, self._topk = retriever, topk

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        self._topk = max(1, int(task.get("topk", self._topk)))
        return ""

    async def step(self, action: str, deadline_s: float) -> Step:
        start = time.monotonic()
        hits = await asyncio.to_thread(self._retriever.search, action.strip(), self._topk)
        signals = {"num_results": len(hits), "scores": [round(h.score, 4) for h in hits], "seconds": round(time.monotonic() - start, 4)}
        return Step(observation=format_passages(h.document for h in hits), signals=signals)
