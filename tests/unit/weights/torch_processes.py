"""Processes of a test that need torch: it is imported once, in the server that they are forked from."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext


@contextmanager
def forked_with(module: str) -> Iterator[ForkServerContext]:
    """Yield a context whose processes have imported `module`.

    A process has one such server. The one that other tests have started has no torch, and the workers of rewards should
    have none.
    """
    server = forkserver._forkserver
    server._stop()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module])
    try:
        yield context
    finally:
        server._stop()
