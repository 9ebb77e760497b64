"""Search-R1's retriever API on the same server, so that its own clients (and verl's search tool) can use it as it is.

    POST /retrieve {queries, topk?, return_scores?} -> {result: [[document, ...], ...]}, one list per query
                                                       with scores: [[{document, score}, ...], ...]

Source: search_r1/search/retrieval_server.py. A request holds one of the server's places, like a step; a full server answers 429.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

from .bm25 import Hit, Retriever

MAX_QUERIES = 1024
MAX_TOPK = 1000


class RetrieveRequest(BaseModel):
    queries: list[str]
    topk: int | None = Field(default=None, ge=0, le=MAX_TOPK, description="passages per query; 0 or none: the server's number")
    return_scores: bool = False


def add_retrieve(app: FastAPI, retriever: Retriever, topk: int) -> None:
    """`app` is an environment's app: its guard and admission hold here too."""

    @app.post("/retrieve")
    async def retrieve(body: RetrieveRequest) -> dict[str, Any]:
        if len(body.queries) > MAX_QUERIES:
            raise HTTPException(413, f"{len(body.queries)} queries exceed the limit of {MAX_QUERIES}. Send several requests.")
        k = body.topk or topk

        def search() -> list[list[Hit]]:
            return [retriever.search(query, k) for query in body.queries]

        async with app.state.service.admission.slot():
            found = await asyncio.to_thread(search)
        if body.return_scores:
            return {"result": [[h._asdict() for h in hits] for hits in found]}
        return {"result": [[h.document for h in hits] for hits in found]}
