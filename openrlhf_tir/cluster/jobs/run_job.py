"""Run the coroutine of a command, and raise this project's errors as the command line prints them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from rich.console import Console

from ...errors import TirError
from ..ray_faults import own_error

T = TypeVar("T")


def run_job(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine with asyncio.run.

    This project's errors are taken out of Ray's, and out of the groups of task groups. Other errors in such a group are
    printed.
    """
    try:
        return asyncio.run(coroutine)
    except TirError as error:
        raise own_error(error) from None
    except BaseExceptionGroup as group:
        known, others = group.split(TirError)
        if known is None:
            raise
        first: BaseException = known
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        if others:
            Console(stderr=True).print_exception()
        raise own_error(first) from None
