"""The torch engine means what the vLLM engine means, deterministically: the reference of the staleness-0 test."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from openrlhf_tir.engines.codec import HfCodec
from openrlhf_tir.engines.local_engine import LocalEngine
from openrlhf_tir.engines.torch_engine import TorchEngine
from openrlhf_tir.errors import WeightsUnverified
from openrlhf_tir.types import Sampling
from openrlhf_tir.weights.publisher import WeightPublisher

from .support.tiny_model import EOS, WORD, HfLearner, make_model, make_tokenizer

pytestmark = pytest.mark.slow  # importing torch and transformers


@pytest.fixture
def engine() -> TorchEngine:
    return TorchEngine(make_model(0, scale=8.0), HfCodec(make_tokenizer()))


@pytest.fixture
def prompt() -> list[int]:
    return make_tokenizer().encode("User: hi\nAssistant:")


async def test_logprobs_are_those_of_one_forward_over_the_whole_text(engine, prompt):
    c = await engine.generate(prompt, Sampling(24, temperature=0.7, top_p=0.9, seed=1), request_id="a")
    assert np.abs(HfLearner(0).logprobs(prompt, c.token_ids) - c.logprobs).max() < 1e-4
    assert (c.versions == 0).all()


async def test_a_response_depends_on_its_seed_and_not_on_what_runs_beside_it(engine, prompt):
    alone = await engine.generate(prompt, Sampling(12, seed=3), request_id="x")
    crowd = await asyncio.gather(*[engine.generate(prompt, Sampling(12, seed=s), request_id=f"{s}") for s in (9, 3, 4)])
    assert crowd[1].token_ids.tolist() == alone.token_ids.tolist() != crowd[0].token_ids.tolist()
    assert crowd[1].logprobs.tolist() == alone.logprobs.tolist()


async def test_without_a_seed_the_request_id_is_the_seed(engine, prompt):
    a, b, other = [await engine.generate(prompt, Sampling(12), request_id=r) for r in ("r1", "r1", "r2")]
    assert a.token_ids.tolist() == b.token_ids.tolist() != other.token_ids.tolist()


async def test_stop_strings_stay_and_the_text_is_cut_inside_a_token(engine, prompt):
    word, codec = make_tokenizer().convert_tokens_to_ids(WORD), engine.codec
    seen = set()
    for seed in range(100):
        c = await engine.generate(prompt, Sampling(32, stop=("User:", "a"), seed=seed), request_id="s")
        if c.finish_reason == "stop" and c.stop_reason == "a":
            assert c.text.endswith("a")
            assert c.text.count("a") == 1
            whole = codec.decode(c.token_ids)
            assert whole == c.text + ("b" if c.token_ids[-1] == word else "")
            seen.add(whole[-1])
        if seen == {"a", "b"}:
            break
    assert seen == {"a", "b"}


async def test_a_sampled_eos_is_the_last_token_and_none_is_invented(engine, prompt):
    ended = full = None
    for seed in range(200):
        c = await engine.generate(prompt, Sampling(48, seed=seed), request_id="e")
        ended, full = (c, full) if c.finish_reason == "stop" else (ended, c)
        if ended and full:
            break
    assert ended.token_ids[-1] == EOS
    assert ended.stop_reason is None
    assert "<eos>" not in ended.text
    assert (full.finish_reason, len(full.token_ids)) == ("length", 48)
    assert EOS not in full.token_ids


async def test_temperature_zero_takes_the_likeliest_token(engine, prompt):
    c = await engine.generate(prompt, Sampling(1, temperature=0.0), request_id="g")
    assert c.token_ids[0] == HfLearner(0).next_logits(prompt).argmax()


async def test_a_published_version_is_sampled_from_and_verified(engine, prompt, tmp_path):
    learner = HfLearner(0)
    publisher = WeightPublisher(learner, [LocalEngine(engine)], tmp_path, [prompt], tolerance=1e-4, canary_tokens=6)
    learner.reset(1)
    assert (await publisher.publish(1)).canary_max_diff < 1e-4
    c = await engine.generate(prompt, Sampling(12, seed=3), request_id="a")
    assert (c.versions == 1).all()
    assert np.abs(learner.logprobs(prompt, c.token_ids) - c.logprobs).max() < 1e-4


async def test_a_file_without_one_layer_or_with_another_digest_is_refused(engine, tmp_path):
    learner, path = HfLearner(1), tmp_path / "w.safetensors"
    digest = await learner.publish(path)
    with pytest.raises(WeightsUnverified, match=digest[::-1][:12]):
        await engine.update_weights(path, 1, digest[::-1])
    learner.leave_out = "model.norm.weight"
    digest = await learner.publish(path)
    with pytest.raises(WeightsUnverified, match=r"\['model\.norm\.weight'\]"):
        await engine.update_weights(path, 1, digest)


async def test_a_cancelled_caller_frees_the_engine_for_the_next(engine, prompt):
    engine._eos = frozenset()  # it would end after 172 tokens
    task = asyncio.create_task(engine.generate(prompt, Sampling(10_000, stop=("\x00",)), request_id="gone"))
    while not engine.progress().get("gone"):
        assert not task.done()
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.stats()["running"] == engine.stats()["waiting"] == 0
    assert len((await engine.generate(prompt, Sampling(2, seed=1), request_id="next")).token_ids) == 2


async def test_a_push_reaches_a_paused_engine_and_the_request_that_waits_has_the_new_version(engine, prompt, tmp_path):
    await engine.pause()
    task = asyncio.create_task(engine.generate(prompt, Sampling(2, seed=1), request_id="w"))
    await asyncio.sleep(0)
    digest = await HfLearner(1).publish(tmp_path / "w.safetensors")
    async with asyncio.timeout(600):
        await engine.update_weights(tmp_path / "w.safetensors", 1, digest)
    await engine.resume()
    assert (await task).versions.tolist() == [1, 1]


async def test_a_push_with_a_canary_goes_through_a_pause_which_holds_again_after_it(engine, prompt, tmp_path):
    await engine.pause()
    digest = await HfLearner(1).publish(tmp_path / "w.safetensors")
    async with asyncio.timeout(600):
        (answer,) = await engine.update_weights(tmp_path / "w.safetensors", 1, digest, ([prompt], 2, 0))
    assert answer.versions.tolist() == [1, 1] and engine.stats()["paused"] == 1.0
    await engine.resume()
    assert engine.stats()["paused"] == 0.0


async def test_a_paused_engine_answers_after_resume(engine, prompt):
    await engine.pause()
    task = asyncio.create_task(engine.generate(prompt, Sampling(2), request_id="w"))
    await asyncio.sleep(0.05)
    assert not task.done()
    assert engine.stats()["paused"] == 1.0
    assert engine.drain_busy_intervals() == []
    await engine.resume()
    assert len((await task).token_ids) == 2
    assert len(engine.drain_busy_intervals()) == 1
