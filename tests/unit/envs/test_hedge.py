"""Hedge: two attempts, one answer."""

from __future__ import annotations

import asyncio

import pytest

from openrlhf_tir.envs.hedge import hedged


class Attempt:
    def __init__(self, seconds: float, answer: str | Exception) -> None:
        self.seconds, self.answer, self.ended = seconds, answer, None

    async def __call__(self) -> str:
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise
        self.ended = "done"
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def test_a_fast_first_answer_needs_no_second_attempt():
    first, second = Attempt(0, "a"), Attempt(0, "b")
    assert await hedged(first, second, 0.5) == "a"
    assert second.ended is None


async def test_the_second_answer_wins_when_the_first_is_slow_and_the_first_is_cancelled():
    first, second = Attempt(5, "a"), Attempt(0, "b")
    assert await hedged(first, second, 0.01) == "b"
    assert first.ended == "cancelled"


async def test_a_failed_second_attempt_does_not_spoil_the_first():
    assert await hedged(Attempt(0.05, "a"), Attempt(0, ValueError("b")), 0.01) == "a"


async def test_both_failed_the_first_failure_is_raised():
    with pytest.raises(ValueError, match="a"):
        await hedged(Attempt(0.03, ValueError("a")), Attempt(0.03, ValueError("b")), 0.01)


async def test_cancelling_the_call_cancels_both():
    first, second = Attempt(5, "a"), Attempt(5, "b")
    call = asyncio.create_task(hedged(first, second, 0.001))
    await asyncio.sleep(0.02)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (first.ended, second.ended) == ("cancelled", "cancelled")
