"""A push through shared memory on a real model: the engine samples from the learner's weights as after a file."""

from __future__ import annotations

import pytest

from openrlhf_tir.engines.local_engine import LocalEngine
from openrlhf_tir.errors import WeightsUnverified
from openrlhf_tir.types import Sampling
from openrlhf_tir.waiting.deadlines import Deadline
from openrlhf_tir.weights.file_transport import FileTransport
from openrlhf_tir.weights.ipc.transport import IpcTransport
from openrlhf_tir.weights.publisher import WeightPublisher
from tests.e2e.support.exposing_learner import ExposingLearner
from tests.e2e.support.tiny_model import HfLearner, make_model, make_tokenizer

pytestmark = pytest.mark.slow  # importing torch and transformers
LATE = Deadline(60.0, "timeouts.push_s")


def make_engine():
    from openrlhf_tir.engines.codec import HfCodec
    from openrlhf_tir.engines.torch_engine import TorchEngine

    return TorchEngine(make_model(0, scale=8.0), HfCodec(make_tokenizer()))


async def sample(engine, prompt):
    return await engine.generate(prompt, Sampling(12, seed=3), request_id="a")


@pytest.mark.parametrize("bucket_bytes", [1 << 30, 100_000])
async def test_an_engine_samples_the_same_as_one_that_had_a_file(tmp_path, bucket_bytes):
    prompt = make_tokenizer().encode("User: hi\nAssistant:")
    learner, engine, other = ExposingLearner(1, bucket_bytes=bucket_bytes), make_engine(), make_engine()
    transport = IpcTransport(learner, FileTransport(learner, tmp_path / "unused", delta=False, deadline=LATE), LATE)
    publishers = [
        WeightPublisher(
            learner, [LocalEngine(engine)], tmp_path, [prompt], tolerance=1e-4, canary_tokens=6, transport=transport
        ),
        WeightPublisher(HfLearner(1), [LocalEngine(other)], tmp_path / "push", [prompt], tolerance=1e-4,
                        canary_tokens=6),
    ]  # fmt: skip
    for version in (1, 2):
        for publisher in publishers:
            publisher.learner.reset(version)
            await publisher.publish(version, must_differ=version > 1)
        found, wanted = await sample(engine, prompt), await sample(other, prompt)
        assert found.logprobs.tobytes() == wanted.logprobs.tobytes() and (found.versions == version).all()
    assert not (tmp_path / "unused").exists()


async def test_what_changed_since_it_was_announced_is_not_used():
    prompt = make_tokenizer().encode("User: hi\nAssistant:")
    learner, engine = ExposingLearner(1), make_engine()
    before = await sample(engine, prompt)
    exposed = await learner.expose("push", 0)
    assert await engine.map_exposed(exposed) is None
    learner.exposer._slots[0][3] += 1
    assert exposed.buckets[0].digest[:12] in (await engine.map_exposed(exposed) or "")
    with pytest.raises(WeightsUnverified):
        await engine.load_exposed(exposed, 1)
    after = await sample(engine, prompt)
    assert after.logprobs.tobytes() == before.logprobs.tobytes() and engine.version == 0
