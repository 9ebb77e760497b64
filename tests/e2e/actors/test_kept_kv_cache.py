"""pipeline.kv_after_push = "keep" on the real vLLM: an engine of its own, started as its setting says."""

from __future__ import annotations

import asyncio

import httpx
import numpy as np
import pytest
import pytest_asyncio

from openrlhf_tir.config import Config
from openrlhf_tir.engines.sessions import Sessions
from openrlhf_tir.engines.vllm_engine import VllmEngine
from openrlhf_tir.pushes import Canary
from openrlhf_tir.types import Sampling

from ..conftest import tiny_config
from ..support.engine_pace import paced
from ..support.tiny_model import HfLearner, make_tokenizer, save_tiny

pytestmark = [pytest.mark.extended, pytest.mark.asyncio(loop_scope="module")]
TOLERANCE, SLOTS = 1e-4, 16


def config() -> Config:
    tiny = tiny_config().model_dump()
    return Config.model_validate(
        {
            **{name: tiny[name] for name in ("ds", "data", "rollout")},
            "vllm": {**tiny["vllm"], "max_num_seqs": SLOTS},
            "pipeline": {"kv_after_push": "keep"},
        }
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory):
    engine = await VllmEngine.start(str(save_tiny(tmp_path_factory.mktemp("model"), seed=0)), config())
    yield engine
    await engine.stop()


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    """More than one block of the cache."""
    return make_tokenizer().encode("User: What is 3+4?\nAssistant:") * 6


def worst(learner: HfLearner, prompt, completion, part=slice(None)) -> float:
    return float(np.abs(learner.logprobs(prompt, completion.token_ids) - completion.logprobs)[part].max())


async def under_way(engine, asked: list, tokens: int) -> list[asyncio.Task]:
    so_far = engine.requests.tokens
    tasks = [asyncio.create_task(engine.generate(p, s, request_id=f"r{so_far}/{i}")) for i, (p, s) in enumerate(asked)]
    while engine.requests.tokens < so_far + tokens:
        await asyncio.sleep(0.005)
    return tasks


async def push(engine, path, digest: str, canary: Canary) -> list:
    version = engine.version + 1
    sampled = await engine.update_weights(path, version, digest, canary)
    await engine.confirm_weights(version)
    return sampled


async def test_the_canary_of_a_full_engine_is_answered_while_all_that_ran_goes_on(engine, prompt, tmp_path):
    """vLLM takes no place from one that runs. Greedy, and the same weights again: none ends before its last token."""
    digest = await HfLearner(seed=0).publish(tmp_path / "w")
    asked = [([*prompt, 5 + i], Sampling(160, temperature=0.0)) for i in range(SLOTS)]
    preempted = engine.stats()["preemptions"]
    async with paced(engine):
        tasks = await under_way(engine, asked, SLOTS * 4)
        sampled = await push(engine, tmp_path / "w", digest, Canary([prompt] * 4, 4, seed=0))
        still = len(engine.requests)
    assert len(sampled) == 4 and all((c.versions == engine.version).all() for c in sampled)
    completions = await asyncio.gather(*tasks)
    assert all(len(set(c.versions.tolist())) == 2 for c in completions), "the push came before or after them"
    assert still == SLOTS, "the canary waited for places"
    assert engine.stats()["preemptions"] == preempted, "a cache was cleared"


async def test_what_runs_goes_on_over_what_the_old_weights_read_and_shares_it_with_nobody(engine, prompt, tmp_path):
    """By two models in transformers: the keys and values of prompt and first tokens are the old one's."""
    old, learner = HfLearner(seed=0), HfLearner(seed=5)
    session, said = Sessions(idle_s=3600).open(), [7, *prompt]
    transport = httpx.ASGITransport(await engine.openai_app(config()))
    body = {"model": "policy", "prompt": said, "max_tokens": 4}
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        with session.request():
            assert (await client.post("/v1/completions", json=body)).status_code == 200
    before, digest = engine.version, await learner.publish(tmp_path / "w")
    async with paced(engine):
        tasks = await under_way(engine, [(prompt, Sampling(160))] * SLOTS, SLOTS * 10)
        sampled = await push(engine, tmp_path / "w", digest, Canary([prompt], 4, seed=0))
    assert worst(learner, prompt, sampled[0]) <= TOLERANCE, "the canary reads with the new weights alone"
    spanning = [c for c in await asyncio.gather(*tasks) if len(set(c.versions.tolist())) == 2]
    assert len(spanning) >= 4
    switches = [int((c.versions == before).sum()) for c in spanning]
    for c, switch in zip(spanning, switches, strict=True):
        assert worst(old, prompt, c, slice(0, switch)) <= TOLERANCE
        kept = learner.logprobs_after(old, prompt, c.token_ids, switch)
        assert np.abs(kept - c.logprobs[switch:]).max() <= TOLERANCE
    long = [(c, at) for c, at in zip(spanning, switches, strict=True) if len(c.token_ids) >= at + 16]
    assert long, "one that ends soon after the push may agree by chance"
    for c, at in long:
        assert worst(learner, prompt, c, slice(at, None)) > 0.1, "the two caches must differ, or it proves nothing"
    hits = engine.stats()["prefix_hits"]
    turn = await engine.generate([*prompt, 9], Sampling(8, first_version=before), request_id="kept/1")
    assert engine.stats()["prefix_hits"] > hits, "the trajectory's own cache"
    assert (turn.versions == before + 1).all()
    hits = engine.stats()["prefix_hits"]
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        with session.request():
            reply = await client.post("/v1/completions", json=body | {"prompt": [*said, 5]})
    assert reply.status_code == 200
    assert engine.stats()["prefix_hits"] > hits, "an agent's session goes on with its own cache as well"


async def test_a_version_that_comes_again_with_other_weights_finds_no_block_of_its_namesake(engine, prompt, tmp_path):
    """As after a roll-back to a checkpoint."""
    again, version = HfLearner(seed=6), engine.version
    fresh = [*prompt, 11]
    await engine.generate(fresh, Sampling(4), request_id="before")
    digest = await again.publish(tmp_path / "w")
    await engine.update_weights(tmp_path / "w", version, digest)
    hits = engine.stats()["prefix_hits"]
    completion = await engine.generate(fresh, Sampling(16), request_id="after")
    assert engine.stats()["prefix_hits"] == hits
    assert worst(again, fresh, completion) <= TOLERANCE
