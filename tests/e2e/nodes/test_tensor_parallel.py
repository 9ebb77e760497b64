"""Tensor parallelism of two with vLLM's gloo workers on CPU: the same log-probs, pushes, versions and verdicts as one
process gives; a dead worker is found."""

from __future__ import annotations

import asyncio

import numpy as np
import psutil
import pytest
import pytest_asyncio

from openrlhf_tir.engines.local_engine import LocalEngine
from openrlhf_tir.engines.vllm_engine import VllmEngine
from openrlhf_tir.errors import EngineError
from openrlhf_tir.types import Sampling
from openrlhf_tir.waiting.deadlines import Deadline, within
from openrlhf_tir.weights.publisher import WeightPublisher

from ..conftest import tiny_config
from ..support.engine_actor import workers
from ..support.tiny_model import HfLearner, make_tokenizer, save_tiny

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]
TOLERANCE = 1e-4


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(tmp_path_factory):
    """The engine and, by the same seed, the learner whose weights it has."""
    config = tiny_config()
    config.vllm.tensor_parallel_size = 2
    engine = await VllmEngine.start(str(save_tiny(tmp_path_factory.mktemp("model"), seed=0)), config)
    yield engine, HfLearner(seed=0)
    await engine.stop()


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    return make_tokenizer().encode("User: What is 3+4?\nAssistant:")


def worst(learner: HfLearner, prompt, completion, part=slice(None)) -> float:
    return float(np.abs(learner.logprobs(prompt, completion.token_ids) - completion.logprobs)[part].max())


async def test_log_probs_are_those_of_a_plain_forward(pair, prompt):
    engine, learner = pair
    assert len(workers(psutil.Process())) == 2
    completions = await asyncio.gather(*[engine.generate(prompt, Sampling(64), request_id=f"tp{i}") for i in range(8)])
    assert max(worst(learner, prompt, c) for c in completions) <= TOLERANCE


async def test_requests_in_flight_go_on_with_pushed_weights_and_the_canary_agrees(pair, prompt, tmp_path):
    engine, learner = pair
    publisher = WeightPublisher(learner, [LocalEngine(engine)], tmp_path / "push", [prompt], tolerance=TOLERANCE)
    old, so_far = HfLearner(seed=0), engine.stats()["tokens_generated"]
    tasks = [asyncio.create_task(engine.generate(prompt, Sampling(160), request_id=f"fly{i}")) for i in range(24)]
    while engine.stats()["tokens_generated"] < so_far + 24 * 10:
        await asyncio.sleep(0.005)
    learner.reset(seed=3)
    report = await publisher.publish(1)
    assert report.refused == 0 and report.canary_max_diff <= TOLERANCE
    completions = await asyncio.gather(*tasks)
    spanning = [c for c in completions if len(set(c.versions.tolist())) == 2]
    assert spanning
    for c in spanning:
        switch = int((c.versions == 0).sum())
        assert worst(old, prompt, c, slice(0, switch)) <= TOLERANCE
        assert worst(learner, prompt, c, slice(switch, None)) <= TOLERANCE


async def test_an_engine_of_which_a_worker_is_killed_is_broken_and_its_callers_are_told(pair, prompt):
    """Last in this file: the engine is gone."""
    engine, _ = pair
    worker = workers(psutil.Process())[0]
    asked = asyncio.create_task(engine.generate(prompt, Sampling(256), request_id="lost"))
    await asyncio.sleep(0)
    worker.kill()
    with pytest.raises(EngineError):
        await within(Deadline(300.0, "test"), asked, "The answer of an engine without a worker")
    with pytest.raises(EngineError):
        await within(Deadline(300.0, "test"), engine.alive(), "The sign of life")
