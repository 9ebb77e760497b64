"""Leaving: who hangs up gives up what was asked. Nobody computes an answer that nobody reads."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from starlette.types import Receive

T = TypeVar("T")
CLIENT_CLOSED_REQUEST = 499
"""nginx's status for it: seen by no client, only by middlewares and logs."""


class ClientLeft(Exception):
    """The client closed its connection before it had the answer."""


async def unless_client_leaves(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. When the client hangs up first, `work` is cancelled and has ended before ClientLeft is
    raised.

    The request's body must have been read: what `receive` says next is that the client left.
    """
    working, leaving = asyncio.create_task(work), asyncio.create_task(_hangs_up(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeft
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.wait({working, leaving})


async def _hangs_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def answer_leavers(app: FastAPI) -> None:
    """ClientLeft is no error: nobody reads the answer."""

    @app.exception_handler(ClientLeft)
    async def left(request: Request, e: ClientLeft) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
