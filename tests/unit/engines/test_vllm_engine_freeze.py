"""Who freezes the engine: a push owns its freeze, a user's pause and resume count when it is over. With a stand-in for vLLM's AsyncLLM."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.engines.vllm_engine import VllmEngine


class FakeLlm:
    """Notes what it is told, and notices an engine that samples while its weights are changed."""

    class model_config:
        max_model_len = 100
        get_vocab_size = staticmethod(lambda: 50)

    def __init__(self) -> None:
        self.frozen = self.loading = False
        self.calls: list[str] = []

    async def _do(self, name: str) -> None:
        await asyncio.sleep(0)
        self.calls.append(name)

    async def pause_generation(self, *, mode, clear_cache):
        await self._do("pause")
        self.frozen = True

    async def resume_generation(self):
        await self._do("resume")
        assert not self.loading, "a half-loaded engine was thawed"
        self.frozen = False

    async def start_weight_update(self):
        await self._do("start")
        assert self.frozen
        self.loading = True

    async def finish_weight_update(self, name):
        await self._do("finish")
        assert self.frozen, "weights changed under requests that sample"
        self.loading = False


class Engine(VllmEngine):
    async def _canary(self, prompt_ids, max_tokens, seed):
        while self._llm.frozen:
            await asyncio.sleep(0)
        self._llm.calls.append("canary")
        return []


@pytest.fixture
def llm() -> FakeLlm:
    return FakeLlm()


@pytest.fixture
def engine(llm) -> Engine:
    return Engine(llm, "model", "file", None, 0, Config())


CANARY = ([[1]], 1, 0)


@pytest.mark.parametrize("canary", [None, CANARY])
async def test_a_resume_during_a_push_takes_effect_when_the_push_is_over(engine, llm, canary):
    await engine.begin_update()
    await engine.resume()
    assert llm.frozen and llm.loading
    await engine.finish_update(1, canary)
    assert not llm.frozen


async def test_a_resume_during_a_push_lifts_the_pause_that_was_there_before(engine, llm):
    await engine.pause()
    await engine.begin_update()
    await engine.resume()
    assert llm.frozen
    await engine.finish_update(1)
    assert not llm.frozen and llm.calls == ["pause", "start", "finish", "resume"]


@pytest.mark.parametrize("canary", [None, CANARY])
async def test_a_pause_during_a_push_stays_after_it_and_its_canary_is_answered_first(engine, llm, canary):
    await engine.begin_update()
    await engine.pause()
    async with asyncio.timeout(10):
        await engine.finish_update(1, canary)
    assert llm.frozen
    await engine.resume()
    assert not llm.frozen


async def test_a_paused_engine_stays_paused_through_a_push(engine, llm):
    await engine.pause()
    await engine.begin_update()
    await engine.finish_update(1)
    assert llm.frozen


@pytest.mark.parametrize("wishes", itertools.product(["pause", "resume"], repeat=4))
async def test_whatever_users_ask_for_at_once_with_a_push_no_half_loaded_engine_samples(engine, llm, wishes):
    async def push() -> None:
        await engine.begin_update()
        await asyncio.sleep(0)
        await engine.finish_update(1, CANARY)

    async def user() -> None:
        for wish in wishes:
            await getattr(engine, wish)()
            await asyncio.sleep(0)

    async with asyncio.timeout(10):
        await asyncio.gather(user(), push(), user())
    assert llm.frozen == (wishes[-1] == "pause")


async def test_a_push_that_failed_leaves_an_engine_that_no_resume_thaws(engine, llm):
    await engine.begin_update()
    engine.broken = "the worker died"
    await engine.resume()
    assert llm.frozen
