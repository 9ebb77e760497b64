"""Cancel the work for a client that hangs up: nobody computes an answer that nobody reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from starlette.types import Receive

T = TypeVar("T")
CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that left. Only middlewares and logs see it."""
LOOKS = 8
"""Turns of the event loop after which `receive` knows of an end of file that has arrived, with some to spare."""


class ClientLeft(Exception):
    """The client closed its connection before it had the answer."""


async def unless_client_leaves(
    receive: Receive, work: Coroutine[Any, Any, T], give_back: Callable[[T], None] | None = None
) -> T:
    """Return the result of `work`, which is cancelled if the client hangs up first.

    Args:
        receive: Receives from the client. The request's body must have been read: the next message is that it left.
        work: Computes the answer.
        give_back: Gets a result that must not be lost, if the client hung up before `work` had ended and the event loop
            was too busy to notice in time.

    Raises:
        ClientLeft: The client hung up. `work` has ended.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_hangs_up(receive))
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
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


def answer_leavers(app: FastAPI) -> None:
    """Have the app end a request whose client left without an error."""

    @app.exception_handler(ClientLeft)
    async def left(request: Request, e: ClientLeft) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
