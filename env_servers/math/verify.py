"""The checker for callers without a session: POST /verify {answer, gold} -> {equal, how, seconds}, or lists of both.

A request that needs computer algebra holds one of the server's execution slots, like a step, and a full server answers
it with 429. A request that strings and arithmetic can decide is answered at once, however many expressions hang at that
time. When a client hangs up, its checks are cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel

from openrlhf_tir.http_guard.leaving import unless_client_leaves

from .verifier import Verdict, Verifier

MAX_ITEMS = 4096
"""Largest number of answers in one request."""


class Question(BaseModel):
    """An answer and the gold answer."""

    answer: str
    gold: str


class Reply(BaseModel):
    """Result of one comparison, as in `verifier.Verdict`."""

    equal: bool
    how: str
    seconds: float


def add_verify(app: FastAPI, verifier: Verifier) -> None:
    """Serve /verify next to the environment, with its guard and admission."""

    async def admitted_checks(questions: list[Question]) -> list[Verdict]:
        async with app.state.service.admission.slot():
            return await asyncio.gather(*[verifier.check(q.answer, q.gold) for q in questions])

    @app.post("/verify")
    async def verify(body: Question | list[Question], request: Request) -> Reply | list[Reply]:
        questions = body if isinstance(body, list) else [body]
        if len(questions) > MAX_ITEMS:
            raise HTTPException(
                413, f"{len(questions)} answers exceed the limit of {MAX_ITEMS}. Send several requests."
            )
        quick = [verifier.at_once(question.answer, question.gold) for question in questions]
        undecided = [question for question, verdict in zip(questions, quick, strict=True) if verdict is None]
        checked: Iterator[Verdict] = iter(())
        if undecided:
            checked = iter(await unless_client_leaves(request.receive, admitted_checks(undecided)))
        replies = [_reply(next(checked) if verdict is None else verdict) for verdict in quick]
        return replies if isinstance(body, list) else replies[0]


def _reply(verdict: Verdict) -> Reply:
    return Reply(**verdict._asdict())
