"""A delta on a real model: the engine samples from the learner's weights, proved by their log-probs, and from the old
ones until it is pushed."""

from __future__ import annotations

import numpy as np
import pytest

from openrlhf_tir.types import Sampling
from tests.e2e.support.tiny_model import HfLearner, make_model, make_tokenizer

pytestmark = [pytest.mark.extended, pytest.mark.slow]  # importing torch and transformers
CHANGED = (
    "layers.0.self_attn.k_proj.weight",
    "layers.2.mlp.up_proj.weight",
    "embed_tokens.weight",
    "model.norm.weight",
)


@pytest.fixture
async def pushed(tmp_path):
    """An engine and its publisher, after a full push."""
    from openrlhf_tir.engines.codec import HfCodec
    from openrlhf_tir.engines.local_engine import LocalEngine
    from openrlhf_tir.engines.torch_engine import TorchEngine
    from openrlhf_tir.weights.file_transport import FileTransport
    from openrlhf_tir.weights.node_copy import NodeCopy
    from openrlhf_tir.weights.publisher import PUSH, WeightPublisher

    engine, learner = TorchEngine(make_model(0, scale=8.0), HfCodec(make_tokenizer())), HfLearner(1)
    engine._node = NodeCopy(keep=True, root=tmp_path)
    prompt = make_tokenizer().encode("User: hi\nAssistant:")
    files = FileTransport(learner, tmp_path / "push", delta=True, deadline=PUSH)
    publisher = WeightPublisher(
        learner,
        [LocalEngine(engine)],
        tmp_path / "push",
        [prompt],
        tolerance=1e-4,
        canary_tokens=6,
        transport=files,
    )
    assert not (await publisher.publish(1)).delta
    return engine, learner, publisher, prompt


def worst(learner, prompt, completion) -> float:
    return float(np.abs(learner.logprobs(prompt, completion.token_ids) - completion.logprobs).max())


async def test_a_delta_is_sampled_from_once_it_is_pushed_and_not_before(pushed, tmp_path):
    engine, learner, publisher, prompt = pushed
    learner.nudge(CHANGED, by=0.05)
    before = await engine.generate(prompt, Sampling(12, seed=3), request_id="a")
    assert worst(learner, prompt, before) > 0.01, "the two must differ, or this proves nothing"
    report = await publisher.publish(2, must_differ=True)
    after = await engine.generate(prompt, Sampling(12, seed=3), request_id="b")
    assert (
        report.delta
        and report.canary_max_diff < 1e-4
        and worst(learner, prompt, after) < 1e-4
        and (after.versions == 2).all()
    )


async def test_a_copy_that_is_patched_changes_nothing_in_an_engine_that_loaded_it(pushed, tmp_path):
    engine, learner, _, prompt = pushed
    old = await engine.generate(prompt, Sampling(12, seed=3), request_id="a")
    learner.nudge(CHANGED, by=0.05)
    changes = await learner.publish_changes(tmp_path / "push" / "v2.delta", 1)
    engine._node.delta(tmp_path / "push" / "v2.delta", 2, *changes)
    again = await engine.generate(prompt, Sampling(12, seed=3), request_id="b")
    assert again.logprobs.tolist() == old.logprobs.tolist()
