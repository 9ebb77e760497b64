"""Pushes through shared memory into a real vLLM engine on CPU, the stand-in for CUDA IPC: vLLM computes in a process of
its own. The same log-probs as after a file, bit for bit; in flight; in several buckets; torn and done again."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import pytest_asyncio

from openrlhf_tir.engines.local_engine import LocalEngine
from openrlhf_tir.engines.vllm_engine import VllmEngine
from openrlhf_tir.errors import LearnerDied
from openrlhf_tir.types import Sampling
from openrlhf_tir.waiting.deadlines import Deadline
from openrlhf_tir.weights.file_transport import FileTransport
from openrlhf_tir.weights.ipc.transport import IpcTransport
from openrlhf_tir.weights.publisher import WeightPublisher

from ..conftest import tiny_config
from ..support.exposing_learner import ExposingLearner
from ..support.tiny_model import HfLearner, make_tokenizer, save_tiny

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]
LATE = Deadline(120.0, "timeouts.push_s")
TOLERANCE = 1e-4
BUCKET_BYTES = 100_000
"""The tiny model takes eight buckets of it or so."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory):
    started = await VllmEngine.start(str(save_tiny(tmp_path_factory.mktemp("model"), seed=0)), tiny_config())
    yield started
    await started.stop()


@pytest.fixture(scope="module")
def learner() -> ExposingLearner:
    return ExposingLearner(seed=0)


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    return make_tokenizer().encode("User: What is 3+4?\nAssistant:")


def make_publisher(learner, engine, directory, prompt) -> WeightPublisher:
    transport = IpcTransport(learner, FileTransport(learner, directory, delta=False, deadline=LATE), LATE)
    return WeightPublisher(
        learner, [LocalEngine(engine)], directory, [prompt], tolerance=TOLERANCE, transport=transport
    )


@pytest.fixture(scope="module")
def publisher(learner, engine, tmp_path_factory, prompt) -> WeightPublisher:
    return make_publisher(learner, engine, tmp_path_factory.mktemp("push"), prompt)


def worst(learner, prompt, completion, part=slice(None)) -> float:
    return float(np.abs(learner.logprobs(prompt, completion.token_ids) - completion.logprobs)[part].max())


async def sampled(engine, prompt, name: str):
    return [await engine.generate(prompt, Sampling(32, seed=seed), request_id=f"{name}{seed}") for seed in range(3)]


@pytest.mark.parametrize("bucket_bytes", [1 << 30, BUCKET_BYTES])
async def test_log_probs_are_those_of_a_file_push_bit_for_bit(
    engine, learner, publisher, prompt, tmp_path, bucket_bytes
):
    learner.bucket_bytes = bucket_bytes
    version = 1 if bucket_bytes > BUCKET_BYTES else 3
    by_file = WeightPublisher(
        HfLearner(version), [LocalEngine(engine)], tmp_path / "push", [prompt], tolerance=TOLERANCE
    )
    await by_file.publish(version)
    wanted = await sampled(engine, prompt, f"file {version}")
    learner.reset(9)
    await publisher.publish(version)
    learner.reset(version)
    report = await publisher.publish(version + 1, must_differ=True)
    assert (report.refused, report.parts["push_ipc"], report.delta) == (0, 1.0, False)
    assert report.canary_max_diff < TOLERANCE and report.write_s > 0
    assert report.nbytes >= sum(t.nbytes for t in learner._weights().values())
    parts = {"push_map_s", "push_freeze_s", "push_begin_s", "push_load_s", "push_read_back_s", "push_resume_s"}
    assert parts <= set(report.parts)
    found = await sampled(engine, prompt, f"exposed {version}")
    assert [c.logprobs.tobytes() for c in found] == [c.logprobs.tobytes() for c in wanted]
    assert all((c.versions == version + 1).all() for c in found)
    assert not list((publisher.transport.by_file.directory).glob("*")), "nothing was written"
    assert engine.read_back.fault is None and not engine.read_back.unread


async def test_requests_in_flight_go_on_with_what_was_exposed(engine, learner, publisher, prompt):
    old = HfLearner(3)
    so_far = engine.stats()["tokens_generated"]
    tasks = [
        asyncio.create_task(engine.generate(prompt, Sampling(200, seed=s), request_id=f"flight{s}")) for s in range(3)
    ]
    while engine.stats()["tokens_generated"] < so_far + 30:
        await asyncio.sleep(0.01)
    learner.reset(5)
    assert (await publisher.publish(5, must_differ=True)).canary_max_diff < TOLERANCE
    both = [c for c in await asyncio.gather(*tasks) if {4, 5} <= set(c.versions.tolist())]
    assert both, "none was in flight"
    for c in both:
        assert worst(old, prompt, c, c.versions == 4) < TOLERANCE
        assert worst(learner, prompt, c, c.versions == 5) < TOLERANCE


async def test_a_learner_lost_between_two_buckets_leaves_the_engine_frozen_for_the_next_learners_push(
    engine, learner, publisher, prompt, tmp_path
):
    def dies(exposed):
        if len(learner.exposures) == calls + 3:
            raise LearnerDied("rank 0 is gone")
        return exposed

    learner.bucket_bytes = BUCKET_BYTES
    learner.reset(6)
    calls = len(learner.exposures)
    learner.after = dies
    with pytest.raises(LearnerDied):
        await publisher.publish(6, must_differ=True)
    learner.after = lambda exposed: exposed
    assert engine.stats()["paused"] == 1.0 and not engine.broken
    again = ExposingLearner(seed=7, bucket_bytes=BUCKET_BYTES)
    report = await make_publisher(again, engine, tmp_path, prompt).publish(5)
    assert (report.refused, report.parts["push_ipc"]) == (0, 1.0)
    assert all(worst(again, prompt, c) < TOLERANCE for c in await sampled(engine, prompt, "restarted"))


async def test_what_the_learner_stops_to_expose_comes_by_file_into_the_half_loaded_engine(
    engine, prompt, tmp_path, caplog
):
    learner = ExposingLearner(seed=8, bucket_bytes=BUCKET_BYTES)
    learner.after = lambda exposed: exposed._replace(fault="no memory") if len(learner.exposures) == 3 else exposed
    publisher = make_publisher(learner, engine, tmp_path, prompt)
    report = await publisher.publish(8)
    assert (report.refused, report.parts["push_ipc"], publisher.transport.disabled_reason is None) == (0, 0.0, False)
    assert all(worst(learner, prompt, c) < TOLERANCE for c in await sampled(engine, prompt, "by file"))
    learner.reset(9)
    assert (await publisher.publish(9, must_differ=True)).refused == 0
    assert all(worst(learner, prompt, c) < TOLERANCE for c in await sampled(engine, prompt, "by file again"))


async def test_memory_that_is_not_what_was_announced_is_refused_before_the_engine_pauses(engine, prompt, tmp_path):
    learner = ExposingLearner(seed=10)

    def mutated(exposed):
        learner.exposer._slots[0][12] += 1
        return exposed

    learner.after = mutated
    publisher = make_publisher(learner, engine, tmp_path, prompt)
    report = await publisher.publish(10)
    assert (report.refused, report.parts["push_ipc"]) == (0, 0.0), "the push came by file"
    assert all(worst(learner, prompt, c) < TOLERANCE for c in await sampled(engine, prompt, "refused"))


async def test_memory_that_changes_while_it_is_loaded_breaks_the_engine_and_is_never_sampled_from(engine, prompt):
    from openrlhf_tir.errors import WeightsUnverified

    learner = ExposingLearner(seed=11)
    exposed = await learner.expose("changes", 0)
    assert await engine.map_exposed(exposed) is None
    learner.exposer._slots[0][12] += 1
    with pytest.raises(WeightsUnverified):
        await engine.load_exposed(exposed, 11)
    assert engine.broken
