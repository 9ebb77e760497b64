"""Leaving: who hangs up gives up what was asked. Nobody computes an answer that nobody reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from starlette.types import Receive

T = TypeVar("T")
CLIENT_CLOSED_REQUEST = 499
"""nginx's status for it: seen by no client, only by middlewares and logs."""
LOOKS = 8
"""Turns of the event loop in which an end of file that has arrived becomes what `receive` says, and some to spare."""


class ClientLeft(Exception):
    """The client closed its connection before it had the answer."""


async def unless_client_leaves(
    receive: Receive, work: Coroutine[Any, Any, T], give_back: Callable[[T], None] | None = None
) -> T:
    """The result of `work`. When the client hangs up first, `work` is cancelled and has ended before ClientLeft is
    raised.

    `give_back` gets a result that must not be lost with a client who hung up before `work` ended, which a busy event
    loop reads later.

    The request's body must have been read: what `receive` says next is that the client left.
    """
    working, leaving = asyncio.create_task(work), asyncio.create_task(_hangs_up(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeft
        result = working.result()
        if give_back is not None:
            for _ in range(LOOKS):
                await asyncio.sleep(0)
            if leaving.done():
                give_back(result)
                raise ClientLeft
        return result
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
