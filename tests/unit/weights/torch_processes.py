"""Processes of a test that need torch: it is imported once, in the server that they are forked from."""

from __future__ import annotations

import multiprocessing
import os
import signal
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
    _end_server()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module])
    try:
        yield context
    finally:
        _end_server()


def _end_server() -> None:
    """End the server, also if a process that it has forked still lives, for which `_stop` would wait."""
    server = forkserver._forkserver
    if server._forkserver_pid is not None:
        os.kill(server._forkserver_pid, signal.SIGKILL)
    server._stop()
