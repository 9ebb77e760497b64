"""Search-R1's retriever API on the same server, so that its own clients (and verl's search tool) work unchanged.

    POST /retrieve {queries, topk?, return_scores?} -> {result: [[document, ...], ...]}, one list per query
                                                       with scores: [[{document, score}, ...], ...]

Source: search_r1/search/retrieval_server.py. A request holds one of the server's execution slots, like a step; a full
server answers 429. Queries, passages and bytes of one request are bounded (413, 422); one that misses the server's
deadline is 503, and its worker is free again. The reply is written in the worker, so that the event loop never waits
for it.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import FastAPI, HTTPException, Request, Response
from pydantic import BaseModel, Field
from pydantic_core import to_json

from openrlhf_tir.http_guard.leaving import unless_client_leaves

from .bm25 import Retriever
from .env import MAX_QUERY_CHARS, MAX_TOPK
from .searches import Searches, Stop, Stopped

MAX_QUERIES = 1024
MAX_HITS = 20_000
"""Largest number of passages in one reply. Search-R1 asks for three per query."""
MAX_REPLY_BYTES = 32 << 20


class RetrieveRequest(BaseModel):
    """Body of a request."""

    queries: list[Annotated[str, Field(max_length=MAX_QUERY_CHARS)]]
    topk: int | None = Field(
        default=None, ge=0, le=MAX_TOPK, description="passages per query; 0 or null: the server's default"
    )
    return_scores: bool = False


class _TooLarge(Exception):
    """Raised when the reply would exceed MAX_REPLY_BYTES."""


def add_retrieve(app: FastAPI, retriever: Retriever, searches: Searches, topk: int, timeout_s: float) -> None:
    """Serve /retrieve next to the environment, with its guard and admission.

    Args:
        app: The app of the environment.
        retriever: Finds the passages.
        searches: Runs the searches.
        topk: Passages per query if the request does not say.
        timeout_s: Seconds from the receipt of a request.
    """

    @app.post("/retrieve")
    async def retrieve(body: RetrieveRequest, request: Request) -> Response:
        k = body.topk or topk
        if len(body.queries) > MAX_QUERIES:
            raise HTTPException(
                413, f"{len(body.queries)} queries exceed the limit of {MAX_QUERIES}. Send several requests."
            )
        if len(body.queries) * k > MAX_HITS:
            raise HTTPException(
                413,
                f"{len(body.queries)} queries for {k} passages each exceed the limit of {MAX_HITS} passages."
                " Send several requests.",
            )

        async def admitted_reply() -> bytes:
            async with asyncio.timeout(timeout_s), app.state.service.admission.slot():
                return await searches.run(lambda stop: _reply(retriever, body.queries, k, body.return_scores, stop))

        try:
            return Response(
                await unless_client_leaves(request.receive, admitted_reply()), media_type="application/json"
            )
        except TimeoutError:
            raise HTTPException(
                503, f"The search took more than {timeout_s:g} s. Send fewer or shorter queries.", {"Retry-After": "1"}
            ) from None
        except _TooLarge:
            raise HTTPException(
                413, f"The reply exceeds {MAX_REPLY_BYTES >> 20} MiB. Send fewer queries, or a smaller topk."
            ) from None


def _reply(retriever: Retriever, queries: list[str], k: int, scores: bool, stop: Stop) -> bytes:
    """Search in a worker thread and return the reply as JSON. Raises Stopped, _TooLarge."""
    parts = []
    size = 0
    for query in queries:
        if stop():
            raise Stopped
        hits = retriever.search(query, k, stop)
        parts.append(
            to_json([{"document": hit.document, "score": hit.score} if scores else hit.document for hit in hits])
        )
        size += len(parts[-1])
        if size > MAX_REPLY_BYTES:
            raise _TooLarge
    return b'{"result":[' + b",".join(parts) + b"]}"
