"""Log-probs as one array per engine step (engines/packed_logprobs.py) on the real vLLM.

test_vllm_engine.py runs on such an engine too: pushes, pauses, migrations, stop strings and cancelled callers there.
"""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.engines.vllm_engine import VllmEngine
from openrlhf_tir.types import Sampling

from .conftest import tiny_config
from .support.engine_pace import STEP_S, paced
from .support.tiny_model import HfLearner, make_tokenizer, save_tiny

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]
TOLERANCE = 1e-4
"""Against a forward by transformers."""
ROUNDING = 1e-5
"""Between two runs of vLLM, which computes a row in batches of different sizes."""


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    return make_tokenizer().encode("User: What is 3+4?\nAssistant:")


async def sampled(engine, prompt, name: str) -> list:
    """Return 24 seeded completions of different lengths: cut by stop strings, by their limit, by the EOS."""
    stops = ((), ("e",), ("ab", "\n"))
    return await asyncio.gather(
        *(
            engine.generate(prompt, Sampling(8 + 5 * i, stops[i % 3], seed=i), request_id=f"{name}{i}")
            for i in range(24)
        )
    )


async def test_the_log_probs_are_those_that_arrive_in_vllms_own_way(engine, prompt, monkeypatch):
    assert engine.requests.inbox is not None
    packed = await sampled(engine, prompt, "packed")
    assert len(engine.requests.inbox) == 0
    monkeypatch.setattr(engine.requests, "inbox", None)
    listed = await sampled(engine, prompt, "listed")
    assert {c.finish_reason for c in packed} == {"stop", "length"}
    for ours, own in zip(packed, listed, strict=True):
        assert ours.token_ids.tolist() == own.token_ids.tolist()
        assert (ours.text, ours.finish_reason, ours.stop_reason) == (own.text, own.finish_reason, own.stop_reason)
        assert ours.logprobs.dtype == own.logprobs.dtype == np.float32
        np.testing.assert_allclose(ours.logprobs, own.logprobs, atol=ROUNDING)


async def test_requests_with_several_log_probs_or_none_share_steps_with_packed_ones(engine, prompt):
    """Greedy and all at once. Each way gets what it asked for."""
    from vllm import SamplingParams
    from vllm.inputs.engine import tokens_input

    async def of_client(logprobs: int | None, name: str):
        params = SamplingParams(max_tokens=24, temperature=0.0, logprobs=logprobs, ignore_eos=False)
        async for output in engine._llm.generate(tokens_input(list(prompt)), params, name):
            last = output
        return last.outputs[0]

    top, none, one, *ours = await asyncio.gather(
        of_client(3, "top"),
        of_client(None, "none"),
        of_client(0, "one"),
        *(engine.generate(prompt, Sampling(24, temperature=0.0), request_id=f"ours{i}") for i in range(3)),
    )
    assert none.logprobs is None
    assert all(len(position) >= 3 for position in top.logprobs)
    for completion in ours:
        assert completion.token_ids.tolist() == list(top.token_ids) == list(none.token_ids) == list(one.token_ids)
        for of in (top, one):
            client = [position[token].logprob for position, token in zip(of.logprobs, of.token_ids, strict=True)]
            np.testing.assert_allclose(completion.logprobs, client, atol=ROUNDING)


async def test_an_aborted_request_has_the_log_probs_of_its_tokens(engine, prompt):
    for attempt in range(20):  # one that ends by an EOS before it is stopped shows nothing
        name = f"aborted{attempt}"
        other = asyncio.create_task(engine.generate(prompt, Sampling(200, temperature=0.0), request_id=f"whole{name}"))
        task = asyncio.create_task(engine.generate(prompt, Sampling(200, seed=attempt), request_id=name))
        while not task.done() and not engine.progress().get(name):
            await asyncio.sleep(0)
        await engine.abort(name)
        completion = await task
        await other
        if completion.finish_reason == "abort":
            break
    assert completion.finish_reason == "abort"
    assert len(completion.logprobs) == len(completion.token_ids) > 0
    assert len(engine.requests.inbox) == 0


async def test_an_aborted_request_has_every_token_that_was_sampled_before(engine, prompt):
    """At most its first token had left vLLM's process. One that ends before it can be cut shows nothing."""
    for seed in range(40):
        asked = Sampling(200, seed=seed)
        whole = await engine.generate(prompt, asked, request_id=f"whole{seed}")
        if len(whole.token_ids) < 40:
            continue
        async with paced(engine, hold_s=1e9):
            task = asyncio.create_task(engine.generate(prompt, asked, request_id=f"cut{seed}"))
            while not engine.progress().get(f"cut{seed}"):
                await asyncio.sleep(0)
            await asyncio.sleep(2 * STEP_S)
            shown = engine.progress().get(f"cut{seed}", len(whole.token_ids))
            await engine.abort(f"cut{seed}")
            cut = await task
        if shown < len(cut.token_ids) < len(whole.token_ids):
            break
    assert cut.finish_reason == "abort"
    assert shown < len(cut.token_ids) < len(whole.token_ids)
    assert cut.token_ids.tolist() == whole.token_ids[: len(cut.token_ids)].tolist()
    np.testing.assert_allclose(cut.logprobs, whole.logprobs[: len(cut.token_ids)], atol=ROUNDING)


async def test_tokens_leave_together_and_all_of_them_before_a_pause_is_complete(engine, prompt, monkeypatch):
    outputs = []
    unpack = engine.requests.inbox.unpack
    monkeypatch.setattr(engine.requests.inbox, "unpack", lambda step: (outputs.extend(step), unpack(step)))
    async with paced(engine, step_s=0.01, hold_s=1e9):
        tasks = [
            asyncio.create_task(engine.generate(prompt, Sampling(200, seed=i), request_id=f"paused{i}"))
            for i in range(8)
        ]
        while engine.progress().get("paused7", 0) < 1:
            await asyncio.sleep(0)
        await engine.pause()
        try:
            await engine.requests.let_arrive()
            at_pause = engine.progress()
            await asyncio.sleep(0.1)
            assert engine.progress() == at_pause
        finally:
            await engine.resume()
        completions = await asyncio.gather(*tasks)
    tokens = sum(len(c.token_ids) for c in completions)
    assert sum(len(output.new_token_ids) for output in outputs) == tokens
    assert len(outputs) < tokens / 2  # of each request its first token, what the pause handed over, and its end


async def test_an_abort_right_after_a_pause_keeps_the_tokens_that_the_pause_handed_over(engine, prompt, monkeypatch):
    """One that ends by an EOS before the pause shows nothing."""
    sampled = 0
    unpack = engine.requests.inbox.unpack

    def count(step) -> None:
        nonlocal sampled
        sampled += sum(len(output.new_token_ids) for output in step)
        unpack(step)

    monkeypatch.setattr(engine.requests.inbox, "unpack", count)
    for seed in range(20):
        sampled = 0
        async with paced(engine, hold_s=1e9):
            task = asyncio.create_task(engine.generate(prompt, Sampling(200, seed=seed), request_id=f"late{seed}"))
            while not engine.progress().get(f"late{seed}"):
                await asyncio.sleep(0)
            await asyncio.sleep(2 * STEP_S)
            await engine.pause()
            try:
                await engine.abort(f"late{seed}")
                completion = await task
            finally:
                await engine.resume()
        if completion.finish_reason == "abort" and sampled > 1:
            break
    assert completion.finish_reason == "abort"
    assert len(completion.token_ids) == sampled > 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("workers", "engine_args"),
    [
        (
            1,
            {
                "enable_chunked_prefill": True,
                "max_num_batched_tokens": 144,
                "async_scheduling": True,
                "num_gpu_blocks_override": 48,
            },
        ),
        (2, {"async_scheduling": False}),
    ],
)
async def test_log_probs_survive_preemption_cut_prefills_and_several_workers(tmp_path, prompt, workers, engine_args):
    """More sequences than the cache holds: the later ones lose theirs and compute their prefix again."""
    tiny = tiny_config().model_dump()
    config = Config.model_validate(
        {
            **{name: tiny[name] for name in ("ds", "data", "rollout")},
            "vllm": {
                "kv_cache_mib": 16,
                "max_num_seqs": 128,
                "tensor_parallel_size": workers,
                "engine_args": engine_args,
            },
        }
    )
    engine = await VllmEngine.start(str(save_tiny(tmp_path / "model", seed=0)), config)
    try:
        # No seeds: on CPU vLLM cannot rewind a generator, which it does for a seeded request of a cut prefill.
        prompts = [[*prompt, 5 + i % 80] for i in range(128)]
        completions = await asyncio.gather(
            *(engine.generate(p, Sampling(250), request_id=f"r{i}") for i, p in enumerate(prompts))
        )
        preemptions = engine.stats()["preemptions"]
        assert len(engine.requests.inbox) == 0
    finally:
        await engine.stop()
    assert preemptions > 0 or workers > 1  # two workers hold twice the cache
    learner = HfLearner(seed=0)
    for p, c in zip(prompts, completions, strict=True):
        np.testing.assert_allclose(c.logprobs, learner.logprobs(p, c.token_ids), atol=TOLERANCE)
