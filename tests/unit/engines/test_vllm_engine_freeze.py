"""Who freezes the engine: a push owns its freeze, a user's pause and resume count after it. A stand-in for AsyncLLM."""

from __future__ import annotations

import asyncio
import itertools

import numpy as np
import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.engines.vllm_engine import VllmEngine
from openrlhf_tir.errors import EngineError, WeightsUnverified
from openrlhf_tir.pushes import BroadcastRendezvous, Exposed, ReadBackReport


class FakeLlm:
    """Notes what it is told, and notices an engine that samples while its weights are changed."""

    class model_config:
        max_model_len = 100
        get_vocab_size = staticmethod(lambda: 50)

    def __init__(self) -> None:
        self.frozen = self.loading = False
        self.unfinished, self.cleared = 0, list[bool]()
        """Requests, and of each pause whether the KV cache went with it."""
        self.received = [["d1", 1, None, False], ["d1", 1, None, False]]
        """What two workers say of a broadcast."""
        self.output_handler = None
        self.calls: list[str] = []

    async def _do(self, name: str) -> None:
        await asyncio.sleep(0)
        self.calls.append(name)

    @property
    def engine_core(self):
        return self

    @property
    def renderer(self):
        return self

    async def clear_mm_cache_async(self):
        pass

    async def pause_scheduler_async(self, *, mode, clear_cache):
        assert mode == "keep"
        await self._do("pause")
        self.frozen = True
        self.cleared.append(clear_cache)

    def get_num_unfinished_requests(self):
        return self.unfinished

    async def resume_generation(self):
        await self._do("resume")
        assert not self.loading, "a half-loaded engine was thawed"
        self.frozen = False

    async def start_weight_update(self):
        await self._do("start")
        assert self.frozen
        self.loading = True

    async def collective_rpc(self, method, args=()):
        if method == "read_back":
            return [ReadBackReport(1)]
        await self._do(method)
        assert self.frozen and self.loading
        if isinstance(self.received, asyncio.Future):
            await self.received
        return self.received

    async def abort(self, ids):
        await self._do("abort")

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
    return Engine(llm, "model", None, 0, Config())


CANARY = ([[1]], 1, 0)


def keeping() -> Config:
    return Config.model_validate({"pipeline": {"kv_after_push": "keep"}, "vllm": {"max_num_seqs": 8}})


async def test_a_push_keeps_the_kv_cache_where_the_canary_has_places_beside_what_runs_and_a_pause_by_a_user_never(llm):
    """vLLM takes no place from a running request: on a full engine the canary would wait for the first that end."""
    engine = Engine(llm, "model", None, 0, keeping())
    for version, (llm.unfinished, cleared) in enumerate([(8, False), (9, True)], 1):
        await engine.begin_update()
        await engine.finish_update(version, CANARY)
        assert llm.cleared[-1] is cleared
    llm.unfinished = 0
    await engine.pause()
    assert llm.cleared == [False, True, True]
    assert keeping().max_running == 8 < Config().max_running, "nothing waits in the engine"


async def test_blocks_are_shared_by_what_began_under_the_same_weights_not_the_same_number(llm):
    engine = Engine(llm, "model", None, 0, keeping())

    def salt(since=None, **prompt):
        return engine.requests.salted({"prompt_token_ids": [1], **prompt}, since)["cache_salt"]

    async def push(version):
        await engine.begin_update()
        await engine.finish_update(version, CANARY)

    await push(4)
    first = salt()
    await push(5)
    assert salt(since=4) == first != salt()
    assert salt(since=6) == salt(), "of an engine that is ahead"
    assert salt(cache_salt="mine") != salt()
    five = salt()
    await push(4)  # the run went back to a checkpoint
    assert salt() != first
    await push(5)
    assert salt() != five
    unsalted = Engine(llm, "model", None, 0, Config())
    assert unsalted.requests.salted({"prompt_token_ids": [1]}, 3) == {"prompt_token_ids": [1]}


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
    async with asyncio.timeout(60):
        await engine.finish_update(1, canary)
    assert llm.frozen
    await engine.resume()
    assert not llm.frozen


async def test_a_paused_engine_stays_paused_through_a_push(engine, llm):
    await engine.pause()
    await engine.begin_update()
    await engine.finish_update(1)
    assert llm.frozen


async def test_a_push_with_a_canary_goes_through_a_pause_which_holds_again_after_it(engine, llm):
    """A person's POST /pause must not cost the engine at the next push."""
    await engine.pause()
    async with asyncio.timeout(60):
        await engine.begin_update()
        await engine.finish_update(1, CANARY)
    assert llm.calls == ["pause", "start", "finish", "resume", "canary", "pause"]
    assert llm.frozen and engine.version == 1
    await engine.resume()
    assert not llm.frozen


async def test_a_canary_of_its_own_is_answered_in_a_pause_as_well(engine, llm):
    await engine.pause()
    async with asyncio.timeout(60):
        await engine.sample_canary(*CANARY)
    assert llm.calls == ["pause", "resume", "canary", "pause"] and llm.frozen


async def test_a_broadcast_is_used_in_a_pause(engine, llm):
    await engine.pause()
    async with asyncio.timeout(60):
        await engine.receive_weights(MEETING, 1, "push1")
        await engine.apply_received(1, "d1", CANARY)
    assert llm.frozen and engine.version == 1 and engine.broken is None


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

    async with asyncio.timeout(60):
        await asyncio.gather(user(), push(), user())
    assert llm.frozen == (wishes[-1] == "pause")


async def test_a_push_that_failed_leaves_an_engine_that_no_resume_thaws(engine, llm):
    await engine.begin_update()
    engine.broken = "the worker died"
    await engine.resume()
    assert llm.frozen


@pytest.mark.parametrize("next_version", [1, 2])
async def test_the_proof_of_a_push_releases_nothing_of_one_before_it_that_was_never_proved(engine, next_version):
    """A second attempt; and another version, of a learner that started again after it died before it had scored."""
    await engine.begin_update()
    await engine.finish_update(1, CANARY)
    with engine.requests.track("running") as running:
        running.token_ids = [5]
        waiting = asyncio.create_task(engine.proof.passed(np.array([1])))
        await asyncio.sleep(0)
        await engine.begin_update()
        await engine.finish_update(next_version, CANARY)
        await engine.confirm_weights(next_version)
        assert running.void
    with pytest.raises(WeightsUnverified):
        await waiting
    await engine.proof.passed(np.array([next_version]))


MEETING = BroadcastRendezvous("gloo", "127.0.0.1", 1, 2, 60.0)


async def test_a_broadcast_is_used_once_all_workers_have_the_learners_digest(engine, llm):
    assert (await engine.receive_weights(MEETING, 1, "push1")).digest == "d1"
    await engine.resume()
    assert llm.frozen, "half of it may be new"
    await engine.apply_received(1, "d1", CANARY)
    assert (
        not llm.frozen
        and engine.version == 1
        and llm.calls == ["pause", "start", "receive_weights", "finish", "resume", "canary"]
    )


async def test_a_torn_broadcast_keeps_the_engine_frozen_until_all_of_another_is_used(engine, llm):
    whole, llm.received = llm.received, [["d1", 1, None, False], [None, 0, "a cable", False]]
    assert (await engine.receive_weights(MEETING, 1, "push1")).fault == "a cable"
    await engine.resume()
    assert llm.frozen and engine.broken is None
    llm.received = whole
    await engine.receive_weights(MEETING, 1, "push2")
    await engine.apply_received(1, "d1")
    assert not llm.frozen and llm.calls == ["pause", "start", "receive_weights", "receive_weights", "finish", "resume"]


class Exposing(FakeLlm):
    """Its worker begins to load exposed buckets by itself, and is done with the last of them."""

    async def collective_rpc(self, method, args=()):
        if method != "load_exposed":
            return await super().collective_rpc(method, args)
        _, _, remaining = args
        self.loading = True
        await super().collective_rpc(method, args)
        self.loading = bool(remaining)
        return [[{"begin": 1.0, "load": 2.0, "read_back": 4.0}, None if remaining else list(ReadBackReport(1))]]


async def test_what_the_calls_of_an_exposed_push_took_is_added_up():
    engine = Engine(Exposing(), "model", None, 0, Config())
    for version in (1, 2):
        for remaining in (2, 1, 0):
            await engine.load_exposed(Exposed(f"push{version}", [], remaining), version)
        parts = await engine.confirm_weights(version)
        assert [parts[f"push_{part}_s"] for part in ("begin", "load", "read_back")] == [3.0, 6.0, 12.0]


@pytest.mark.parametrize("by_file", [True, False])
async def test_a_push_that_ended_between_two_buckets_gives_way_to_one_of_another_transport(by_file):
    """The worker holds a part of the first, which it undoes before it loads the other."""
    llm = Exposing()
    engine = Engine(llm, "model", None, 0, Config())
    await engine.load_exposed(Exposed("push1", [], remaining=1), 1)
    await engine.resume()
    assert llm.frozen
    if by_file:
        await engine.begin_update()
        await engine.finish_update(1)
    else:
        await engine.receive_weights(MEETING, 1, "push2")
        await engine.apply_received(1, "d1")
    received = [] if by_file else ["receive_weights"]
    assert llm.calls == ["pause", "load_exposed", "begin_again", *received, "finish", "resume"]


@pytest.mark.parametrize(
    ("received", "why"),
    [
        ([["d1", 1, None, False], ["d2", 1, None, False]], ": d1, d2"),
        ([["d1", 1, None, False], [None, 0, "loading failed", True]], "loading failed"),
    ],
)
async def test_workers_that_disagree_or_cannot_load_break_the_engine(engine, llm, received, why):
    llm.received = received
    with pytest.raises(WeightsUnverified, match=why):
        await engine.receive_weights(MEETING, 1, "push1")
    assert llm.frozen and why in engine.broken
    with pytest.raises(EngineError, match=why):
        await engine.receive_weights(MEETING, 1, "push2")


@pytest.mark.parametrize("digest", ["d1", "d2"])
async def test_what_was_not_received_is_not_used(engine, llm, digest):
    """Another digest than the learner's; and the right one a second time."""
    await engine.receive_weights(MEETING, 1, "push1")
    if digest == "d1":
        await engine.apply_received(1, "d1")
    with pytest.raises(WeightsUnverified, match=rf" {digest} .* 2\b"):
        await engine.apply_received(2, digest)
    assert engine.broken and engine.version == (1 if digest == "d1" else 0)


async def test_an_engine_process_that_dies_in_a_push_is_not_waited_for(engine, llm):
    """vLLM leaves the call without an answer; its reader ends."""
    llm.received = asyncio.get_running_loop().create_future()
    llm.output_handler = asyncio.create_task(asyncio.sleep(0))
    with pytest.raises(WeightsUnverified, match=" 0: vLLM's "):
        await engine.receive_weights(MEETING, 1, "push1")
    assert engine.broken and llm.calls[-1] == "abort"
