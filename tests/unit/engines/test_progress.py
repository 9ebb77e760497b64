"""An engine that answers, has requests, and does nothing. The clock is a list."""

from __future__ import annotations

import asyncio

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.engines.progress import PATIENCE, Progress
from openrlhf_tir.engines.start import LatestStats
from openrlhf_tir.engines.vllm_engine import Push, VllmEngine
from openrlhf_tir.errors import EngineError
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.waiting.deadlines import Deadline

from .test_engine_port import Llm


class Watched:
    def __init__(self) -> None:
        self.now = 0.0
        self.progress = Progress(Deadline(60, "timeouts.push_s"), lambda: self.now)

    def look(self, after_s: float, done: int, *, busy: bool = True) -> None:
        self.now += after_s
        self.progress.check(done, busy=busy)


def test_an_engine_with_requests_that_does_nothing_for_too_long_is_found():
    w = Watched()
    for done in (10, 20, 20, 20, 20, 20, 20):
        w.look(10, done)
    with pytest.raises(EngineError, match=r" 60 s, .*timeouts\.push_s = 60 s"):
        w.look(10, 20)


def test_an_idle_or_paused_engine_and_one_that_works_slowly_are_not():
    w = Watched()
    for _ in range(100):
        w.look(10, 20, busy=False)
    for done in range(20, 30):
        for _ in range(5):
            w.look(10, done)


def test_a_process_that_was_stopped_for_an_hour_is_not_taken_for_stuck():
    w = Watched()
    w.look(10, 20)
    w.look(10, 20)
    w.look(3600, 20)
    w.look(10, 21)


class SilentCore(Llm):
    """AsyncLLM whose engine process answers, or does not, or is dead."""

    def __init__(self) -> None:
        self.silent, self.dead, self.unfinished = False, False, 0

    async def is_paused(self) -> bool:
        if self.dead:
            raise RuntimeError("EngineCore encountered an issue.")
        if self.silent:
            await asyncio.get_running_loop().create_future()
        return False

    def get_num_unfinished_requests(self) -> int:
        return self.unfinished


def engine(llm: SilentCore) -> VllmEngine:
    return VllmEngine(llm, "model", LatestStats(), 0, Config(timeouts={"push_s": 60}))


def test_the_heartbeat_asks_vllms_own_process_and_not_the_actors_only():
    async def scenario():
        llm = SilentCore()
        e = engine(llm)
        await e.alive()
        llm.silent = True
        with pytest.raises(EngineError, match=r"timeouts\.push_s / 2 = 30 s"):
            await e.alive()
        assert "timeouts.push_s / 2" in e.broken

    run(scenario())


def test_a_dead_engine_process_breaks_the_engine_for_good():
    async def scenario():
        llm = SilentCore()
        e = engine(llm)
        llm.dead = True
        for _ in range(2):
            with pytest.raises(EngineError, match="EngineCore encountered an issue"):
                await e.alive()
            llm.dead = False

    run(scenario())


@pytest.mark.parametrize("push_s", [40, 3600])
def test_the_patience_with_an_engine_does_not_follow_a_push(push_s):
    e = VllmEngine(SilentCore(), "model", LatestStats(), 0, Config(timeouts={"push_s": push_s}))
    assert e._progress.patience == PATIENCE and push_s != PATIENCE.seconds < Config().rollout.group_deadline_s


def test_a_core_that_answers_and_samples_nothing_is_found_by_its_progress():
    async def scenario():
        llm = SilentCore()
        e, now = engine(llm), [0.0]
        e._progress = Progress(Deadline(60, "timeouts.push_s"), lambda: now[0])
        llm.unfinished = 3
        for _ in range(6):
            now[0] += 10
            await e.alive()
        e._latest.tokens_done += 1
        for _ in range(6):
            now[0] += 10
            await e.alive()
        now[0] += 10
        with pytest.raises(EngineError, match=r" 60 s, .*timeouts\.push_s = 60 s"):
            await e.alive()

    run(scenario())


def test_an_engine_that_loads_weights_answers_nobody_and_is_not_given_up_for_it():
    async def scenario():
        llm = SilentCore()
        e = engine(llm)
        llm.silent, e._push = True, Push.LOADING
        await e.alive()
        e._push = Push.NONE
        with pytest.raises(EngineError):
            await e.alive()

    run(scenario())
