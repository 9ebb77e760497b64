"""Broadcasts into real vLLM engines on CPU, over gloo: the same log-probs as after a file, bit for bit; in flight; torn
in the middle and done again; with tensor parallelism. Two engines, of one and of two workers, beside one that gets
files."""

from __future__ import annotations

import asyncio

import numpy as np
import psutil
import pytest
import pytest_asyncio

from openrlhf_tir.engines.local_engine import LocalEngine
from openrlhf_tir.engines.vllm_engine import VllmEngine
from openrlhf_tir.errors import WeightsUnverified
from openrlhf_tir.types import Sampling
from openrlhf_tir.waiting.deadlines import Deadline
from openrlhf_tir.weights.broadcast.transport import BroadcastTransport, Deadlines
from openrlhf_tir.weights.publisher import WeightPublisher

from ..conftest import tiny_config
from ..support.broadcast_learner import BroadcastLearner
from ..support.engine_actor import engine_processes, workers
from ..support.tiny_model import HfLearner, make_tokenizer, save_tiny

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]
LATE = Deadline(120.0, "timeouts.push_s")
TOLERANCE = 1e-4


async def start(model, workers: int = 1) -> VllmEngine:
    config = tiny_config()
    config.vllm.sync_backend, config.vllm.tensor_parallel_size = "gloo", workers
    return await VllmEngine.start(str(model), config)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("model"), seed=0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines(model):
    """Two for broadcasts; a third has files."""
    started = [await start(model) for _ in range(3)]
    yield started
    for engine in started:
        await engine.stop()


@pytest.fixture(scope="module")
def learner() -> BroadcastLearner:
    return BroadcastLearner(seed=0)


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    return make_tokenizer().encode("User: What is 3+4?\nAssistant:")


@pytest.fixture(scope="module")
def publisher(learner, engines, tmp_path_factory, prompt) -> WeightPublisher:
    return make_publisher(learner, engines[:2], tmp_path_factory.mktemp("push"), prompt)


def make_publisher(learner, engines, directory, prompt, workers: int = 1) -> WeightPublisher:
    transport = BroadcastTransport(learner, workers, Deadlines(LATE, LATE))
    handles = [LocalEngine(engine, f"rollout-{i}") for i, engine in enumerate(engines)]
    return WeightPublisher(learner, handles, directory, [prompt], tolerance=TOLERANCE, transport=transport)


def worst(learner, prompt, completion, part=slice(None)) -> float:
    return float(np.abs(learner.logprobs(prompt, completion.token_ids) - completion.logprobs)[part].max())


async def sampled(engine, prompt, name: str):
    return [await engine.generate(prompt, Sampling(48, seed=seed), request_id=f"{name}{seed}") for seed in range(3)]


async def test_log_probs_are_those_of_a_file_push_bit_for_bit(engines, learner, publisher, prompt, tmp_path):
    for version in (1, 2):
        learner.reset(version)
        by_file = WeightPublisher(
            HfLearner(version), [LocalEngine(engines[2])], tmp_path / f"push{version}", [prompt], tolerance=TOLERANCE
        )
        report, filed = await publisher.publish(version, must_differ=version > 1), await by_file.publish(version)
        assert report.digest == filed.digest and report.refused == filed.refused == 0
        assert report.canary_max_diff == filed.canary_max_diff < TOLERANCE and report.write_s > 0
        wanted = await sampled(engines[2], prompt, "file")
        for engine in engines[:2]:
            found = await sampled(engine, prompt, "broadcast")
            assert [c.token_ids.tolist() for c in found] == [c.token_ids.tolist() for c in wanted]
            assert [c.logprobs.tobytes() for c in found] == [c.logprobs.tobytes() for c in wanted]
            assert all((c.versions == version).all() and worst(learner, prompt, c) < TOLERANCE for c in found)
            assert engine.stats()["push_pause_s"] > 0
    assert learner.opened == 1


async def test_requests_in_flight_go_on_with_what_was_broadcast(engines, learner, publisher, prompt):
    engine, old = engines[0], HfLearner(2)
    so_far = engine.stats()["tokens_generated"]
    tasks = [
        asyncio.create_task(engine.generate(prompt, Sampling(200, seed=s), request_id=f"flight{s}")) for s in range(3)
    ]
    while engine.stats()["tokens_generated"] < so_far + 30:
        await asyncio.sleep(0.01)
    learner.reset(3)
    assert (await publisher.publish(3, must_differ=True)).canary_max_diff < TOLERANCE
    both = [c for c in await asyncio.gather(*tasks) if {2, 3} <= set(c.versions.tolist())]
    assert both, "none was in flight"
    for c in both:
        assert (
            worst(old, prompt, c, c.versions == 2) < TOLERANCE
            and worst(learner, prompt, c, c.versions == 3) < TOLERANCE
        )


async def test_a_torn_push_freezes_the_engine_until_the_next_is_proved(engines, learner, publisher, prompt):
    """Half of the layers are new then. Nothing samples from them, and the repeated push leaves no old ones."""
    torn, frozen = [], []

    def tear(n: int) -> None:
        if n == 3 and not torn:
            torn.append(n)
            learner.sender.end(learner.pushing, "a cable")
        elif n == 0 and torn:
            frozen.extend(engine.stats()["paused"] for engine in engines[:2])

    learner.reset(4)
    learner.between = tear
    opened = learner.opened
    try:
        report = await publisher.publish(4, must_differ=True)
    finally:
        learner.between = lambda n: None
    assert torn == [3] and frozen == [1.0, 1.0] and learner.opened == opened + 1
    assert report.refused == 0 and report.canary_max_diff < TOLERANCE
    for engine in engines[:2]:
        assert all(
            (c.versions == 4).all() and worst(learner, prompt, c) < TOLERANCE
            for c in await sampled(engine, prompt, "torn")
        )


async def test_an_engine_that_joins_is_proved_alone_and_then_pushed_to_with_the_others(
    engines, learner, publisher, prompt
):
    newcomer = LocalEngine(engines[2], "rollout-2")
    await publisher.join(newcomer)
    assert (
        engines[2].version == 4 and worst(learner, prompt, (await sampled(engines[2], prompt, "joined"))[0]) < TOLERANCE
    )
    publisher.engines.append(newcomer)
    learner.reset(5)
    assert (await publisher.publish(5, must_differ=True)).refused == 0
    assert [engine.version for engine in engines] == [5, 5, 5]


async def test_an_engine_whose_process_dies_costs_the_others_one_attempt(engines, learner, publisher, prompt):
    victim, killed = engines[2], []
    cores = sorted(engine_processes(psutil.Process()), key=lambda p: p.create_time())
    assert len(cores) == 3, "they were started one after the other"

    def kill(n: int) -> None:
        if n == 3 and not killed:
            killed.append(n)
            cores[-1].kill()

    learner.reset(6)
    learner.between = kill
    try:
        report = await publisher.publish(6, must_differ=True)
    finally:
        learner.between = lambda n: None
    assert killed == [3] and report.refused == 1
    assert victim.broken and "timeouts." not in victim.broken, "it was not waited for until a deadline"
    for engine in engines[:2]:
        assert all(
            (c.versions == 6).all() and worst(learner, prompt, c) < TOLERANCE
            for c in await sampled(engine, prompt, "survivor")
        )


async def test_another_digest_than_the_learners_breaks_the_engine(engines, learner, prompt):
    engine = engines[1]
    meeting = await learner.open_broadcast(1)
    received, sent = await asyncio.gather(engine.receive_weights(meeting, 1, "push"), learner.broadcast("push"))
    assert received.digest == sent.digest
    waiting = asyncio.create_task(engine.generate(prompt, Sampling(4), request_id="waits"))
    await asyncio.sleep(0)
    with pytest.raises(WeightsUnverified, match=sent.digest[::-1][:12]):
        await engine.apply_received(7, sent.digest[::-1])
    assert engine.broken
    with pytest.raises(Exception, match=sent.digest[::-1][:12]):
        await waiting


async def test_each_tensor_parallel_worker_receives_all_and_keeps_its_slice(model, prompt, tmp_path):
    learner, engine = BroadcastLearner(seed=1), await start(model, workers=2)
    try:
        assert len(workers(psutil.Process())) >= 2
        report = await make_publisher(learner, [engine], tmp_path, prompt, workers=2).publish(1)
        assert report.refused == 0 and report.canary_max_diff < TOLERANCE
        assert all(
            (c.versions == 1).all() and worst(learner, prompt, c) < TOLERANCE
            for c in await sampled(engine, prompt, "tp")
        )
    finally:
        await engine.stop()
