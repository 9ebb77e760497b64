"""Calls in threads that a process can leave behind."""

from __future__ import annotations

import asyncio
import threading

import pytest

from openrlhf_tir.waiting import daemon_threads
from openrlhf_tir.waiting.daemon_threads import in_daemon_thread


async def test_the_result_and_the_error_of_a_call_arrive():
    assert await in_daemon_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await in_daemon_thread(divmod, 7, 0)


async def test_the_end_of_an_iterator_arrives_as_another_error():
    async with asyncio.timeout(10):
        with pytest.raises(RuntimeError, match="StopIteration"):
            await in_daemon_thread(next, iter(()))


async def test_a_call_that_is_cancelled_before_its_thread_begins_is_not_made(monkeypatch):
    waiting = []

    class Late(threading.Thread):
        def start(self) -> None:
            waiting.append(self)

    monkeypatch.setattr(daemon_threads.threading, "Thread", Late)
    made = []
    in_daemon_thread(made.append, 1).cancel()
    await asyncio.sleep(0)  # the cancellation reaches the thread by the event loop
    [thread] = waiting
    thread.run()
    assert made == []
