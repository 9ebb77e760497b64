"""Background tasks that die: started again, or given up by name. Virtual time."""

from __future__ import annotations

import asyncio

import pytest

from openrlhf_tir.errors import BackgroundDied, ConfigError
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.waiting.background import background, kept_running


class Work:
    """Fails as often as it is told, then runs for ever. `started` holds the times of its starts."""

    def __init__(self, fails: int, error: Exception | None = None, lasts_s: float = 0.0) -> None:
        self.fails, self.error, self.lasts_s = fails, error or OSError("stale file handle"), lasts_s
        self.started: list[float] = []
        self.cancelled = False

    async def __call__(self) -> None:
        self.started.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.lasts_s)
        if len(self.started) <= self.fails:
            raise self.error
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


def test_a_dead_background_task_is_started_again_with_a_growing_pause_and_ends_with_its_owner():
    async def scenario():
        work = Work(fails=3)
        async with background("control file", work):
            await asyncio.sleep(100)
        begun = work.started[0]
        assert [t - begun for t in work.started] == [0, 1, 3, 7]
        assert work.cancelled

    run(scenario())


def test_one_that_may_be_given_up_is_named_after_so_many_failures():
    async def scenario():
        work = Work(fails=99)
        with pytest.raises(BackgroundDied, match=r"'heartbeat' .*5 .*OSError: stale file handle"):
            await kept_running("heartbeat", work, attempts=5)
        assert len(work.started) == 5

    run(scenario())


def test_an_error_of_the_user_ends_the_owner_of_the_task():
    async def scenario():
        work, reached = Work(fails=1, error=ConfigError("no such environment")), []

        async def owner() -> None:
            async with background("control file", work):
                await asyncio.sleep(3600)
                reached.append("end of the body")

        with pytest.raises(ConfigError, match="no such environment"):
            await owner()
        assert not reached

    run(scenario())


def test_what_the_user_must_mend_is_not_tried_again():
    async def scenario():
        work = Work(fails=1, error=ConfigError("no such environment"))
        with pytest.raises(ConfigError, match="no such environment"):
            await kept_running("env server", work)
        assert len(work.started) == 1

    run(scenario())


def test_failures_count_anew_after_a_long_time_that_went_well():
    async def scenario():
        work = Work(fails=12, lasts_s=301)
        async with background("heartbeat", work):
            await asyncio.sleep(6000)
        assert len(work.started) == 13

    run(scenario())


def test_a_task_that_returns_is_over_and_its_owner_goes_on():
    async def scenario():
        async def short() -> None:
            await asyncio.sleep(1)

        async with background("short", short) as task:
            await asyncio.sleep(5)
            assert task.done()

    run(scenario())


def test_an_error_of_the_body_is_raised_as_it_is():
    async def scenario():
        work = Work(fails=0)

        async def owner() -> None:
            async with background("idle", work):
                await asyncio.sleep(1)
                raise ValueError("of the body")

        with pytest.raises(ValueError, match="of the body"):
            await owner()
        assert work.cancelled

    run(scenario())
