"""A broadcast on a real model over gloo: engines sample from the learner's weights as after a file, bit for bit, and
from the old ones until it is proved."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from openrlhf_tir.engines.local_engine import LocalEngine
from openrlhf_tir.errors import EngineGone, WeightsUnverified
from openrlhf_tir.pushes import BroadcastResult
from openrlhf_tir.types import Sampling
from openrlhf_tir.waiting.deadlines import Deadline
from openrlhf_tir.weights.broadcast.transport import BroadcastTransport, Deadlines
from openrlhf_tir.weights.publisher import WeightPublisher
from tests.e2e.support.broadcast_learner import BroadcastLearner
from tests.e2e.support.tiny_model import HfLearner, make_model, make_tokenizer

pytestmark = pytest.mark.slow  # importing torch and transformers
LATE = Deadline(60.0, "timeouts.push_s")


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    return make_tokenizer().encode("User: hi\nAssistant:")


def make_engine():
    from openrlhf_tir.engines.codec import HfCodec
    from openrlhf_tir.engines.torch_engine import TorchEngine

    return TorchEngine(make_model(0, scale=8.0), HfCodec(make_tokenizer()))


def make_publisher(learner, engines, tmp_path, prompt) -> WeightPublisher:
    transport = BroadcastTransport(learner, 1, Deadlines(LATE, LATE))
    handles = [LocalEngine(engine, f"rollout-{i}") for i, engine in enumerate(engines)]
    return WeightPublisher(learner, handles, tmp_path, [prompt], tolerance=1e-4, canary_tokens=6, transport=transport)


async def sample(engine, prompt):
    return await engine.generate(prompt, Sampling(12, seed=3), request_id="a")


async def test_two_engines_sample_the_same_as_one_that_had_a_file(tmp_path, prompt):
    learner, engines, other = BroadcastLearner(1), [make_engine(), make_engine()], make_engine()
    publisher = make_publisher(learner, engines, tmp_path, prompt)
    by_file = WeightPublisher(
        HfLearner(1), [LocalEngine(other)], tmp_path / "push", [prompt], tolerance=1e-4, canary_tokens=6
    )
    for version in (1, 2):
        learner.reset(version)
        by_file.learner.reset(version)
        report, filed = await publisher.publish(version, must_differ=version > 1), await by_file.publish(version)
        assert (report.digest, report.canary_max_diff) == (filed.digest, filed.canary_max_diff)
        wanted = await sample(other, prompt)
        for engine in engines:
            found = await sample(engine, prompt)
            assert (
                found.token_ids.tolist() == wanted.token_ids.tolist()
                and found.logprobs.tobytes() == wanted.logprobs.tobytes()
            )
            assert (found.versions == version).all()
    assert learner.opened == 1 and list(tmp_path.iterdir()) == [tmp_path / "push"], "nothing was written"


async def test_an_engine_that_dies_in_a_broadcast_costs_the_other_nothing_but_that_push(tmp_path, prompt):
    learner, well, died = BroadcastLearner(1), make_engine(), asyncio.Event()
    loop, doomed = asyncio.get_running_loop(), make_engine()
    receive, left_behind = doomed.receive_weights, []

    async def dies(*args) -> BroadcastResult:
        """Its process goes on for a bucket, then it is found dead, as Ray would tell."""
        left_behind.append(asyncio.ensure_future(receive(*args)))
        await died.wait()
        raise EngineGone("rollout-1 is gone")

    doomed.receive_weights, tries = dies, []

    def between(n: int) -> None:
        if n == 1 and not tries:
            tries.append(n)
            loop.call_soon_threadsafe(died.set)
        elif n == 2 and len(tries) == 1:
            tries.append(n)
            assert learner.told.wait(60)

    learner.told, end = threading.Event(), learner.end_broadcast

    async def told(push: str, why: str) -> None:
        await end(push, why)
        learner.told.set()

    learner.between, learner.end_broadcast = between, told
    before = await sample(well, prompt)
    report = await make_publisher(learner, [well, doomed], tmp_path, prompt).publish(1)
    after = await sample(well, prompt)
    assert tries == [1, 2] and learner.opened == 2 and report.refused == 0 and report.canary_max_diff < 1e-4
    assert (before.versions == 0).all() and (after.versions == 1).all()
    assert np.abs(learner.logprobs(prompt, after.token_ids) - after.logprobs).max() < 1e-4


async def test_what_was_torn_or_has_another_digest_is_never_used(prompt):
    learner, engine = BroadcastLearner(1), make_engine()
    before = await sample(engine, prompt)
    learner.between = lambda n: n == 2 and learner.sender.end("push1", "the run was stopped")
    meeting = await learner.open_broadcast(1)
    received, sent = await asyncio.gather(engine.receive_weights(meeting, 1, "push1"), learner.broadcast("push1"))
    assert received.digest is None and "the run was stopped" in received.fault and "the run was stopped" in sent.fault
    learner.between = lambda n: None
    meeting = await learner.open_broadcast(1)
    received, sent = await asyncio.gather(engine.receive_weights(meeting, 1, "push2"), learner.broadcast("push2"))
    assert received.digest == sent.digest
    with pytest.raises(WeightsUnverified, match=rf" {sent.digest[:12]}.* {sent.digest[::-1][:12]} "):
        await engine.apply_received(1, sent.digest[::-1])
    with pytest.raises(WeightsUnverified, match=rf" None.* {sent.digest[:12]} "):
        await engine.apply_received(1, sent.digest)
    after = await sample(engine, prompt)
    assert after.token_ids.tolist() == before.token_ids.tolist() and (after.versions == 0).all()
