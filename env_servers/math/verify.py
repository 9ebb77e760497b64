"""The checker for callers without a session: POST /verify {answer, gold} -> {equal, how, seconds}, or lists of both.

A request that needs computer algebra holds one of the server's places, like a step, and a full server answers it 429.
What strings and arithmetic can tell is told at once, however many expressions hang at that time. A client that hangs up
takes its checks along."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel

from openrlhf_tir.http_guard.leaving import unless_client_leaves

from .verifier import Verdict, Verifier

MAX_ITEMS = 4096


class Question(BaseModel):
    answer: str
    gold: str


class Reply(BaseModel):
    equal: bool
    how: str
    seconds: float


def add_verify(app: FastAPI, verifier: Verifier) -> None:
    """`app` is an environment's app: its guard and admission hold here too."""

    async def in_turn(questions: list[Question]) -> list[Verdict]:
        async with app.state.service.admission.slot():
            return await asyncio.gather(*[verifier.check(q.answer, q.gold) for q in questions])

    @app.post("/verify")
    async def verify(body: Question | list[Question], request: Request) -> Reply | list[Reply]:
        questions = body if isinstance(body, list) else [body]
        if len(questions) > MAX_ITEMS:
            raise HTTPException(
                413, f"{len(questions)} answers exceed the limit of {MAX_ITEMS}. Send several requests."
            )
        known = [verifier.at_once(q.answer, q.gold) for q in questions]
        open_ones = [q for q, verdict in zip(questions, known, strict=True) if verdict is None]
        checked = iter(await unless_client_leaves(request.receive, in_turn(open_ones)) if open_ones else [])
        replies = [_reply(next(checked) if verdict is None else verdict) for verdict in known]
        return replies if isinstance(body, list) else replies[0]


def _reply(verdict: Verdict) -> Reply:
    return Reply(**verdict._asdict())
