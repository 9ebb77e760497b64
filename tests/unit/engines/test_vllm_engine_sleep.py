"""An engine that leaves its GPU to the learner: what vLLM is told, in which order. With a stand-in for its AsyncLLM,
whose calls are the installed one's."""

from __future__ import annotations

import asyncio
import inspect
import re

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.engines.vllm_engine import KV_CACHE, SLEEP_LEVEL, WEIGHTS, VllmEngine
from openrlhf_tir.errors import ConfigError, EngineError, WeightsUnverified

from .test_vllm_engine_freeze import CANARY, MEETING, Engine, FakeLlm


class Sleeper(FakeLlm):
    """vLLM's executor sleeps as a whole and wakes by tags; its scheduler goes on by itself with the last of them."""

    def __init__(self) -> None:
        super().__init__()
        self.asleep: set[str] = set()
        self.fails: str | None = None

    async def sleep(self, level, mode):
        assert (level, mode) == (SLEEP_LEVEL, "keep") == (1, "keep")
        assert self.frozen and not self.loading and not self.asleep
        await self._moved("sleep")
        self.asleep = {WEIGHTS, KV_CACHE}

    async def wake_up(self, tags):
        (tag,) = tags
        assert tag in self.asleep, "vLLM would warn, and do nothing"
        await self._moved(f"wake {tag}")
        self.asleep.discard(tag)
        self.frozen = bool(self.asleep)

    async def _moved(self, call: str) -> None:
        await self._do(call)
        if self.fails == call:
            raise RuntimeError("CUDA out of memory")

    async def resume_generation(self):
        assert not self.asleep, "a sleeping engine was thawed"
        await super().resume_generation()

    async def start_weight_update(self):
        assert WEIGHTS not in self.asleep, "weights are loaded into memory that is not there"
        await super().start_weight_update()

    async def is_paused(self):
        return self.frozen


@pytest.fixture
def llm() -> Sleeper:
    return Sleeper()


@pytest.fixture
def engine(llm) -> Engine:
    return Engine(llm, "model", None, 0, Config())


async def test_a_push_wakes_the_weights_first_and_the_kv_cache_for_the_canary(engine, llm):
    await engine.sleep()
    await engine.begin_update()
    await engine.finish_update(1, CANARY)
    assert llm.calls == ["pause", "sleep", "wake weights", "start", "finish", "wake kv_cache", "canary"]
    assert not llm.frozen and not llm.asleep and engine.version == 1


async def test_a_broadcast_wakes_it_as_well(engine, llm):
    await engine.sleep()
    await engine.receive_weights(MEETING, 1, "push1")
    await engine.apply_received(1, "d1", CANARY)
    assert llm.calls == [
        "pause", "sleep", "wake weights", "start", "receive_weights", "finish", "wake kv_cache", "canary",
    ]  # fmt: skip


async def test_without_a_push_it_wakes_with_the_weights_that_it_had(engine, llm):
    await engine.sleep()
    await engine.sleep()
    await engine.wake()
    await engine.wake()
    assert llm.calls == ["pause", "sleep", "wake weights", "wake kv_cache"]
    assert not llm.frozen and engine.version == 0


async def test_a_wake_during_a_push_leaves_the_engine_frozen_until_the_push_is_over(engine, llm):
    """vLLM itself goes on with requests once all is awake: they would be answered by half-loaded weights."""
    await engine.sleep()
    await engine.begin_update()
    await engine.wake()
    assert llm.frozen and llm.loading and llm.asleep == {KV_CACHE}
    await engine.finish_update(1, CANARY)
    assert llm.calls == ["pause", "sleep", "wake weights", "start", "finish", "wake kv_cache", "canary"]
    assert not llm.frozen and engine.version == 1


async def test_a_wake_at_any_moment_of_a_push_is_harmless(engine, llm):
    for turns in range(12):
        await engine.sleep()

        async def wake(turns=turns):
            for _ in range(turns):
                await asyncio.sleep(0)
            await engine.wake()

        async def push(version=turns + 1):
            await engine.begin_update()
            await asyncio.sleep(0)
            await engine.finish_update(version, CANARY)

        async with asyncio.timeout(60):
            await asyncio.gather(wake(), push())
        assert not llm.frozen and not llm.asleep and engine.broken is None


async def test_a_push_on_an_engine_that_is_awake_wakes_nothing(engine, llm):
    await engine.begin_update()
    await engine.finish_update(1, CANARY)
    assert llm.calls == ["pause", "start", "finish", "resume", "canary"]


async def test_a_resume_by_a_user_thaws_no_sleeping_engine_and_a_pause_outlasts_its_sleep(engine, llm):
    await engine.pause()
    await engine.sleep()
    await engine.resume()
    assert llm.frozen and llm.asleep
    await engine.pause()
    await engine.wake()
    assert llm.frozen and not llm.asleep
    await engine.resume()
    assert not llm.frozen


async def test_a_pause_by_a_user_outlasts_a_push_that_wakes(engine, llm):
    await engine.pause()
    await engine.sleep()
    await engine.begin_update()
    await engine.finish_update(1)
    assert llm.frozen and not llm.asleep
    await engine.resume()
    assert not llm.frozen


async def test_a_sleeping_engine_is_alive_and_paused(engine, llm):
    llm.get_num_unfinished_requests = lambda: 3
    await engine.sleep()
    engine._latest = type(
        "Latest",
        (),
        {"tokens_done": 0, "running": 0, "kv_usage": 0, "prefix_tokens": 0, "prefix_hits": 0, "preemptions": 0},
    )()
    await engine.alive()
    assert engine.stats()["paused"] == 1.0 and engine.broken is None


@pytest.mark.parametrize(("fails", "call"), [("sleep", "sleep"), ("wake weights", "wake"), ("wake kv_cache", "wake")])
async def test_one_that_cannot_sleep_or_wake_is_broken_and_says_so(engine, llm, fails, call):
    if call == "wake":
        await engine.sleep()
    llm.fails = fails
    with pytest.raises(
        EngineError,
        match=rf"'{call}' .* 0: CUDA out of memory",
    ):
        await getattr(engine, call)()
    assert engine.broken is not None
    with pytest.raises(EngineError, match=re.escape(engine.broken)):
        await engine.wake()


async def test_a_push_whose_kv_cache_finds_no_room_breaks_the_engine(engine, llm):
    await engine.sleep()
    llm.fails = "wake kv_cache"
    await engine.begin_update()
    with pytest.raises(WeightsUnverified, match=r"'resume' .* 1: CUDA out of memory"):
        await engine.finish_update(1, CANARY)


async def test_a_sleep_that_is_asked_for_while_it_wakes_is_done_when_it_is_awake(engine, llm):
    """A switch to the engines was given up, and the learner takes the GPU: no engine may wake behind it."""
    await engine.sleep()
    waking = asyncio.create_task(engine.wake())
    await asyncio.sleep(0)
    await engine.sleep()
    await waking
    assert llm.asleep == {WEIGHTS, KV_CACHE} and engine.broken is None


async def test_it_is_not_put_to_sleep_in_the_middle_of_a_push(engine, llm):
    await engine.begin_update()
    with pytest.raises(EngineError, match=r"'sleep' .* 0: "):
        await engine.sleep()
    assert "sleep" not in llm.calls


async def test_a_process_that_dies_in_its_sleep_is_not_waited_for(engine, llm):
    """vLLM leaves the call without an answer; its reader ends."""

    async def never(**_):
        await asyncio.get_running_loop().create_future()

    llm.sleep, llm.output_handler = never, asyncio.create_task(asyncio.sleep(0))
    with pytest.raises(EngineError, match=r"'sleep' .* 0: ") as dead:
        await engine.sleep()
    assert isinstance(dead.value.__cause__, EngineError), "and no time limit"


async def test_on_cpu_an_engine_that_should_sleep_is_refused_before_it_loads(monkeypatch):
    monkeypatch.setattr("openrlhf_tir.engines.vllm_engine.runs_on_gpus", lambda: False)
    cfg = Config(train={"colocate_all": True}, pipeline={"mode": "sync"})
    with pytest.raises(ConfigError) as refused:
        await VllmEngine.start("/nowhere", cfg)
    assert (refused.value.code, refused.value.setting) == ("machine", "train.colocate_all")


@pytest.mark.slow  # importing vllm
def test_the_stand_ins_calls_are_the_installed_vllms():
    """A wrong name or keyword would be found on a GPU only."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.executor.abstract import Executor

    bound = inspect.signature(AsyncLLM.sleep).bind(None, level=SLEEP_LEVEL, mode="keep").arguments
    assert bound["level"] == 1 and inspect.iscoroutinefunction(AsyncLLM.sleep)
    inspect.signature(AsyncLLM.wake_up).bind(None, tags=[WEIGHTS])
    assert inspect.iscoroutinefunction(AsyncLLM.wake_up)
    assert "enable_sleep_mode" in inspect.signature(AsyncEngineArgs).parameters
    for method, marks in (
        ("sleep", (f'"{WEIGHTS}"', f'"{KV_CACHE}"')),
        ("wake_up", ("self.sleeping_tags.remove(tag)", "self.is_sleeping = False")),
    ):
        source = inspect.getsource(getattr(Executor, method))
        assert all(mark in source for mark in marks), "vLLM's names of what sleeps, or how it wakes, are other ones now"


@pytest.mark.slow  # importing vllm
def test_vllm_goes_on_with_requests_by_itself_once_all_is_awake_and_not_before():
    from vllm.v1.engine.core import EngineCore

    class Woken:
        def __init__(self, asleep: bool) -> None:
            self.is_sleeping = asleep

        def wake_up(self, tags):
            assert tags == [WEIGHTS]

    class Core:
        resumed = False

        def resume_scheduler(self):
            self.resumed = True

    for asleep in (True, False):
        core = Core()
        core.model_executor = Woken(asleep)
        EngineCore.wake_up(core, tags=[WEIGHTS])
        assert core.resumed is not asleep


@pytest.mark.slow  # importing vllm
def test_the_engine_is_started_with_what_sleep_needs(tmp_path):
    from openrlhf_tir.engines.start import engine_args

    shared, apart = (Config(train={"colocate_all": on}, pipeline={"mode": "sync"}) for on in (True, False))
    assert [engine_args(str(tmp_path), cfg, gpu=True, index=0).enable_sleep_mode for cfg in (shared, apart)] == [
        True,
        False,
    ]
