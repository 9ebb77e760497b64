"""The real vLLM engine on a tiny model: one engine for all (conftest.py), tests in order (each push moves the version
on).

The reference is a plain fp32 forward of the same weights by transformers.
"""

from __future__ import annotations

import asyncio
import copy
import time
from contextlib import AsyncExitStack

import httpx
import numpy as np
import psutil
import pytest
import pytest_asyncio

from benchmarks.canary.faults import PACKED_HEAD, all_faults, install
from openrlhf_tir.engines.codec import HfCodec, text_of
from openrlhf_tir.engines.local_engine import LocalEngine
from openrlhf_tir.engines.sessions import Sessions
from openrlhf_tir.errors import DeltaRefused, EngineError, RequestRefused, WeightsUnverified
from openrlhf_tir.memory.threads import compute_threads
from openrlhf_tir.pushes import Canary
from openrlhf_tir.rollout.sequence_migration import SequenceMigration
from openrlhf_tir.types import Sampling
from openrlhf_tir.waiting.deadlines import Deadline
from openrlhf_tir.weights.file_transport import FileTransport
from openrlhf_tir.weights.node_copy import NodeCopy
from openrlhf_tir.weights.publisher import PUSH, WeightPublisher

from ..contract.called_in_process import CalledInProcess
from .conftest import tiny_config
from .support.engine_pace import paced
from .support.tiny_model import EOS, WORD, HfLearner, make_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def learner() -> HfLearner:
    """Holds the weights that the engine should have."""
    return HfLearner(seed=0)


@pytest.fixture
def publisher(engine, learner, tmp_path):
    prompts = [make_tokenizer().encode(p) for p in ("User: What is 17*23?\nAssistant:", "User: hi\nAssistant:")]
    return WeightPublisher(learner, [LocalEngine(engine)], tmp_path / "push", prompts, tolerance=TOLERANCE)


@pytest_asyncio.fixture(autouse=True, loop_scope="session")
async def nothing_held(engine):
    """A test that failed half-way leaves neither a verdict nor a frozen engine for the next one to wait on."""
    yield
    engine.proof.proved(engine.proof.unproved)
    if not engine.broken:
        await engine.resume()


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    return make_tokenizer().encode("User: What is 3+4?\nAssistant:")


def worst(learner: HfLearner, prompt, completion, part=slice(None)) -> float:
    """Largest difference, engine vs transformers, over the chosen sampled tokens."""
    reference_T = learner.logprobs(prompt, completion.token_ids)
    return float(np.abs(reference_T - completion.logprobs)[part].max())


async def test_a_forked_engine_computes_with_the_threads_that_it_is_told(engine, learner, prompt):
    assert engine.threads == compute_threads(tiny_config()).engine
    try:
        await engine.compute_with(2)
        assert engine.threads == 2
        completion = await engine.generate(prompt, Sampling(16), request_id="two-threads")
        assert worst(learner, prompt, completion) <= TOLERANCE
    finally:
        await engine.compute_with(1)


async def test_sampled_logprobs_equal_a_plain_forward(engine, learner, prompt):
    completions = await asyncio.gather(*[engine.generate(prompt, Sampling(64), request_id=f"lp{i}") for i in range(8)])
    assert max(worst(learner, prompt, c) for c in completions) <= TOLERANCE
    assert len({c.token_ids.tobytes() for c in completions}) == 8
    assert all((c.versions == 0).all() and c.finish_reason in ("length", "stop") for c in completions)


@pytest.mark.parametrize(
    "shape",
    [
        {"temperature": 0.6},
        {"temperature": 0.6, "top_p": 0.9},
        {"top_k": 5},
        {"temperature": 1.5, "top_k": 20, "min_p": 0.05},
    ],
)
async def test_ratios_start_at_one_however_the_rollout_samples(engine, learner, prompt, shape):
    """The learner's log-probs of what the engine sampled, by the learner's own head, are the engine's."""
    import torch

    from openrlhf_tir.learner.linear_head import chunked_scores
    from openrlhf_tir.learner.truncation import Truncation

    completions = await asyncio.gather(
        *[engine.generate(prompt, Sampling(64, seed=i, **shape), request_id=f"{shape}{i}") for i in range(8)]
    )
    cut = Truncation(**{name: value for name, value in shape.items() if name != "temperature"})
    for c in completions:
        ids = torch.tensor([[*prompt, *c.token_ids.tolist()]])
        with torch.no_grad():
            hidden = learner.model.model(ids).last_hidden_state[0, len(prompt) - 1 : -1]
            scores = chunked_scores(
                hidden,
                learner.model.lm_head.weight,
                ids[0, len(prompt) :],
                temperature=shape.get("temperature", 1.0),
                truncation=cut,
            )
        ratios = (scores.log_probs.numpy() - c.logprobs).astype(np.float64)
        assert np.abs(ratios).max() <= TOLERANCE
    plain = np.concatenate([learner.logprobs(prompt, c.token_ids) - c.logprobs for c in completions])
    assert np.abs(plain).max() > 0.05  # so that it was worth while


async def test_an_engine_tells_its_seconds_with_requests_those_of_prompts_without_requests_and_paused(engine, prompt):
    async def grown(work) -> set[str]:
        before = engine.stats()
        await work
        after = engine.stats()
        return {name for name in ("busy_s", "prefill_s", "idle_s") if after[name] > before[name]}

    async def generate_while_paused():
        await engine.pause()
        generating = asyncio.create_task(engine.generate(prompt, Sampling(8), request_id="paused"))
        await asyncio.sleep(0)
        assert not generating.done()
        await engine.resume()
        await generating

    before = engine.stats()
    await engine.generate(prompt, Sampling(64), request_id="prefill and decode")
    after = engine.stats()
    prefill_s, busy_s = (after[name] - before[name] for name in ("prefill_s", "busy_s"))
    assert 0 < prefill_s < busy_s
    assert await grown(asyncio.sleep(0.01)) == {"idle_s"}
    assert await grown(generate_while_paused()) >= {"busy_s", "prefill_s"}
    assert engine.stats()["paused_s"] > after["paused_s"]


async def test_a_response_whose_cache_a_pause_took_is_computed_again_as_a_prefill(engine, prompt):
    generating = asyncio.create_task(engine.generate(prompt, Sampling(200, temperature=0.0), request_id="again"))
    while not engine.requests.tokens or not engine.progress().get("again"):
        await asyncio.sleep(0.01)
    before = engine.stats()["prefill_s"]
    await engine.pause()
    paused_at = engine.stats()["prefill_s"]
    await engine.resume()
    await generating
    assert before == paused_at < engine.stats()["prefill_s"]


async def test_a_seed_repeats_a_response_and_temperature_zero_is_greedy(engine, learner, prompt):
    a, b = [await engine.generate(prompt, Sampling(16, seed=5), request_id=r) for r in "ab"]
    assert a.token_ids.tolist() == b.token_ids.tolist()
    greedy = await engine.generate(prompt, Sampling(8, temperature=0.0), request_id="g")
    assert greedy.token_ids[0] == learner.next_logits(prompt).argmax()
    assert worst(learner, prompt, greedy) <= TOLERANCE


@pytest.mark.parametrize("stop", [(), ("e",)])
async def test_a_response_that_is_handed_over_in_the_middle_has_the_tokens_of_one_that_stays(
    engine, prompt, stop, monkeypatch
):
    """To the same engine, as a request of its own: stopped where it is, its prefix computed again."""
    codec = HfCodec(make_tokenizer())
    migration = SequenceMigration(engine, lambda prompt_ids, ids: text_of(codec, prompt_ids, ids))
    sampling = Sampling(200, stop, temperature=0.0)
    stayed = await engine.generate(prompt, sampling, request_id="stays/0")
    asked, track = [], engine.requests.track
    monkeypatch.setattr(engine.requests, "track", lambda request_id: (asked.append(request_id), track(request_id))[1])
    for path in ("first", "again", "once more"):  # one that has ended before it is stopped crosses nothing
        asked.clear()
        with migration.writing(path):
            async with paced(engine):
                moving = asyncio.create_task(
                    migration.around(engine).generate(prompt, sampling, request_id=f"{path}/0")
                )
                while not moving.done() and not engine.progress().get(f"{path}/0"):
                    await asyncio.sleep(0)
                crossed = await migration.move(path, "lane", engine)
            moved = await moving
            assert crossed and migration.locations[path].tokens == len(moved.token_ids)
        if len(asked) == 2:
            break
    if not stop:  # with one it ends after a few tokens
        assert asked == [f"{path}/0", f"{path}/0~1"], "what follows the tokens so far is a request of its own"
    assert moved.token_ids.tolist() == stayed.token_ids.tolist()
    assert (moved.text, moved.finish_reason, moved.stop_reason) == (
        stayed.text,
        stayed.finish_reason,
        stayed.stop_reason,
    )
    np.testing.assert_allclose(moved.logprobs, stayed.logprobs, atol=TOLERANCE)


async def test_the_stop_string_stays_in_text_and_tokens(engine, prompt):
    c = await engine.generate(prompt, Sampling(200, stop=("e",), seed=1), request_id="stop")
    assert (c.finish_reason, c.stop_reason) == ("stop", "e")
    assert c.text.endswith("e")
    assert c.text.count("e") == 1
    assert make_tokenizer().decode(c.token_ids) == c.text


async def test_a_stop_string_that_ends_inside_a_token_keeps_the_whole_token(engine, prompt):
    """The token "ab" completes the stop "a": the text is cut after "a", the sampled token is not."""
    word = make_tokenizer().convert_tokens_to_ids(WORD)
    for seed in range(100):
        c = await engine.generate(prompt, Sampling(64, stop=("a",), seed=seed), request_id=f"in{seed}")
        if len(c.token_ids) and c.token_ids[-1] == word:
            break
    assert c.token_ids[-1] == word
    assert c.text.endswith("a")
    assert make_tokenizer().decode(c.token_ids) == c.text + "b"
    assert len(c.logprobs) == len(c.versions) == len(c.token_ids)


async def test_a_sampled_eos_is_the_last_token_and_none_is_invented(engine, learner, prompt):
    ended, full = None, None
    for seed in range(200):
        c = await engine.generate(prompt, Sampling(128, seed=seed), request_id=f"eos{seed}")
        ended, full = (c, full) if c.finish_reason == "stop" else (ended, c)
        if ended and full:
            break
    assert ended.token_ids[-1] == EOS
    assert ended.token_ids.tolist().count(EOS) == 1
    assert ended.stop_reason is None
    assert "<eos>" not in ended.text
    assert worst(learner, prompt, ended) <= TOLERANCE
    assert len(full.token_ids) == 128
    assert EOS not in full.token_ids


async def test_a_prompt_that_does_not_fit_is_refused_and_costs_no_engine(engine, prompt):
    with pytest.raises(RequestRefused, match=r"\b500\b") as refused:
        await engine.generate([5] * 500, Sampling(8), request_id="long")
    assert not isinstance(refused.value, EngineError), "an engine error makes the pool replace the engine"
    assert engine.bounds.max_model_len < 500 and engine.broken is None
    await engine.alive()
    assert len((await engine.generate(prompt, Sampling(2), request_id="next")).token_ids) >= 1


async def test_the_engine_counts_the_work_that_it_has_done(engine, prompt):
    before = engine._latest.tokens_done
    completion = await engine.generate(prompt, Sampling(16), request_id="work")
    while engine._latest.tokens_done < before + len(completion.token_ids):  # they come with the engine's next message
        await asyncio.sleep(0.01)


async def test_seeded_requests_survive_a_prefill_bigger_than_one_engine_step(engine):
    """48 prompts of 120 tokens, seeded: a prefill cut in two kills vLLM 0.29 on CPU (generators cannot be rewound)."""
    long = [5 + i % 40 for i in range(120)]
    prompts = [[*long, 5 + i] for i in range(48)]
    done = await asyncio.gather(
        *(engine.generate(p, Sampling(2, seed=i), request_id=f"long{i}") for i, p in enumerate(prompts))
    )
    assert all(1 <= len(c.token_ids) <= 2 for c in done)  # an early EOS is fine


async def test_a_cancelled_caller_aborts_its_request(engine, prompt):
    sampling = Sampling(256, stop=("\x00",), temperature=0.0)
    task = asyncio.create_task(engine.generate(prompt, sampling, request_id="gone"))
    while engine.stats()["running"] + engine.stats()["waiting"] == 0:
        assert not task.done()
        await asyncio.sleep(0)  # looks before any answer can have arrived
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.stats()["running"] + engine.stats()["waiting"] == 0


async def test_busy_intervals_cover_decoding_and_nothing_else(engine, prompt):
    engine.drain_busy_intervals()
    await asyncio.sleep(0.05)
    asked = time.time()
    await asyncio.gather(*[engine.generate(prompt, Sampling(8), request_id=f"busy{i}") for i in range(3)])
    [(start, end)] = engine.drain_busy_intervals()
    assert asked <= start < end <= time.time()
    assert engine.drain_busy_intervals() == []


async def test_a_push_of_other_weights_is_sampled_from(engine, learner, publisher, prompt):
    before = await engine.generate(prompt, Sampling(32, seed=1), request_id="before")
    learner.reset(seed=1)
    assert worst(learner, prompt, before) > 1, "the two models must differ, or this proves nothing"
    report = await publisher.publish(1)
    after = await engine.generate(prompt, Sampling(32), request_id="after")
    assert worst(learner, prompt, after) <= TOLERANCE
    assert report.canary_max_diff <= TOLERANCE
    assert (after.versions == 1).all()
    assert engine.version == 1
    assert report.refused == 0


async def test_a_push_that_should_change_something_and_does_not_is_refused(learner, publisher):
    learner.reset(seed=2)
    await publisher.publish(2)
    with pytest.raises(WeightsUnverified, match=r"\b3\b.*\b[0-9a-f]{12}\b"):
        await publisher.publish(3, must_differ=True)


async def test_requests_in_flight_go_on_with_the_new_weights_and_say_so(engine, learner, publisher, prompt):
    """Per token: log-probs before the switch are the old model's, after it the new one's over the recomputed prefix."""
    old = HfLearner(seed=2)
    learner.reset(seed=3)
    so_far = engine.stats()["tokens_generated"]
    async with paced(engine):
        tasks = [asyncio.create_task(engine.generate(prompt, Sampling(160), request_id=f"fly{i}")) for i in range(24)]
        while engine.stats()["tokens_generated"] < so_far + 24 * 10:
            await asyncio.sleep(0.005)
        await publisher.publish(3)
    completions = await asyncio.gather(*tasks)
    spanning = [c for c in completions if len(set(c.versions.tolist())) == 2]
    assert len(spanning) >= 6
    for c in spanning:
        switch = int((c.versions == 2).sum())
        assert c.versions.tolist() == [2] * switch + [3] * (len(c.versions) - switch)
        assert worst(old, prompt, c, slice(0, switch)) <= TOLERANCE
        assert worst(learner, prompt, c, slice(switch, None)) <= TOLERANCE


async def test_under_a_full_engine_the_canary_is_answered_first_and_what_the_new_weights_sampled_waits_for_its_verdict(
    engine, learner, prompt, tmp_path
):
    """64 sequences decode at once. A canary that took its turn would wait until all of 192 but the last 64 have ended.

    The wish to freeze, and the canary's answer, may be late on a busy machine: the engine is slow until both are there.
    """
    answered = []

    async def ask(i: int):
        answered.append(await engine.generate(prompt, Sampling(256), request_id=f"full{i}"))

    path, so_far = tmp_path / "w.safetensors", engine.requests.tokens
    await learner.publish(path)
    async with paced(engine):
        tasks = [asyncio.create_task(ask(i)) for i in range(96)]
        while engine.requests.tokens < so_far + 64 * 3:
            await asyncio.sleep(0)
        await engine.begin_update()  # frozen
        tasks += [asyncio.create_task(ask(i)) for i in range(96, 192)]
        while engine._llm.get_num_unfinished_requests() < 192 - len(answered):
            await asyncio.sleep(0)  # all are queued before the canary is
        await engine.receive({"path": str(path)})
        sampled = await engine.finish_update(4, Canary([prompt], 4, seed=0))
        unfinished, before = len(engine.requests), len(answered)
    assert (sampled[0].versions == 4).all()
    assert unfinished > 64, "the canary waited for its turn"
    while engine.requests.request_ids:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert len(answered) == before, "sampled by weights that were not proved yet"
    assert all((c.versions < 4).all() for c in answered)
    await engine.confirm_weights(4)
    await asyncio.gather(*tasks)
    assert len(answered) == 192 and all(c.finish_reason in ("stop", "length") for c in answered)
    assert sum((c.versions == 4).all() for c in answered) >= 96
    assert any(len(set(c.versions.tolist())) == 2 for c in answered), "the freeze found none under way"


async def test_a_paused_engine_stays_paused_through_a_push_and_answers_after_resume(engine, learner, tmp_path, prompt):
    await engine.pause()
    task = asyncio.create_task(engine.generate(prompt, Sampling(8), request_id="waits"))
    learner.reset(seed=4)
    digest = await learner.publish(tmp_path / "w.safetensors")
    await engine.update_weights(tmp_path / "w.safetensors", 4, digest)
    await asyncio.sleep(0.1)
    assert not task.done()
    await engine.resume()
    c = await task
    assert (c.versions == 4).all()
    assert worst(learner, prompt, c) <= TOLERANCE


async def test_a_file_that_is_not_the_announced_one_is_refused_and_harmless(engine, learner, tmp_path, prompt):
    path = tmp_path / "w.safetensors"
    other = HfLearner(seed=9)
    await other.publish(path)
    with pytest.raises(WeightsUnverified, match="0" * 12):
        await engine.update_weights(path, 5, "0" * 64)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(WeightsUnverified, match=r"w\.safetensors"):
        await engine.update_weights(path, 5, "0" * 64)
    c = await engine.generate(prompt, Sampling(8), request_id="still")
    assert (c.versions == 4).all()
    assert worst(learner, prompt, c) <= TOLERANCE


def verdict_only(engine, **replaced):
    """The engine as a push target that survives being discarded: the tests below need it after each refusal."""

    class Target(CalledInProcess):
        refused = ""
        update_weights = engine.update_weights
        sample_canary = engine.sample_canary
        confirm_weights = engine.confirm_weights

        async def discard(self, why):
            self.refused = why
            engine.proof.proved(engine.version)

    target = Target()
    for name, function in replaced.items():
        setattr(target, name, function)
    return target


async def test_the_canary_catches_a_push_that_only_arrives(engine, learner, publisher):
    """The engine takes the file and checks its digest, but loads nothing: the silent failure."""
    learner.reset(seed=5)

    async def deaf(path, version, digest, canary, link=None):
        engine.requests.switch(version)
        return await engine.sample_canary(*canary)

    publisher.engines = [target := verdict_only(engine, update_weights=deaf)]
    assert (await publisher.publish(5)).refused == 1
    assert target.refused


async def test_a_push_with_a_tied_head_that_keeps_its_packed_copy_is_not_proved(engine, learner, publisher):
    """Without the re-pack the logits still come from the old embedding; every check before the canary passes."""
    publisher.engines = [target := verdict_only(engine)]
    install_fault = engine._llm.collective_rpc
    await install_fault(install, args=(PACKED_HEAD, -1, 3, None, None))
    learner.reset(seed=6)
    assert (await publisher.publish(6)).refused == 1
    assert engine.read_back.differing == ("model.embed_tokens.weight",), "the read-back names the head's tensor"
    assert target.refused
    await install_fault(install, args=("none", -1, 3, None, None))
    learner.reset(seed=7)
    report = await publisher.publish(7)
    assert report.refused == 0 and report.canary_max_diff <= TOLERANCE


async def test_the_canary_catches_a_layer_that_was_not_in_the_file(engine, learner, publisher):
    publisher.engines = [verdict_only(engine)]
    learner.reset(seed=8)
    learner.leave_out = "model.layers.1.mlp.down_proj.weight"
    assert (await publisher.publish(8)).refused == 1
    assert engine.read_back.missing == ("model.layers.1.mlp.down_proj",)
    learner.leave_out = None
    assert (await publisher.publish(8)).refused == 0, "a right push mends it"


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name, marks=pytest.mark.extended if fault.name.endswith(("@0", "@2")) else [])
        for fault in all_faults(layers=3)
    ],
)
async def test_no_push_with_a_fault_is_proved_and_the_next_right_one_is(engine, learner, tmp_path, fault):
    """After an update as small as one at a learning rate of 1e-6. The faults are built into the worker."""
    publisher = WeightPublisher(learner, [verdict_only(engine)], tmp_path / "push", canary_texts(), tolerance=TOLERANCE)
    assert (await publisher.publish(8)).refused == 0
    before, other = tmp_path / "before.safetensors", tmp_path / "other.safetensors"
    await learner.publish(before)
    await HfLearner(seed=77).publish(other)
    learner.nudge([""], by=1e-6)
    install_fault = engine._llm.collective_rpc
    await install_fault(install, args=(fault.kind, fault.layer, 3, str(before), str(other)))
    try:
        assert (await publisher.publish(8)).refused == 1
    finally:
        await install_fault(install, args=("none", -1, 3, None, None))
    report = await publisher.publish(8, must_differ=False)
    assert report.refused == 0 and report.canary_excess < 0.6


def canary_texts() -> list[list[int]]:
    return [make_tokenizer().encode(f"User: What is {n}*{n + 3}?\nAssistant:") for n in range(11, 27)]


async def test_a_traced_request_over_a_push_has_the_version_of_each_token(engine, learner, tmp_path):
    """Through vLLM's own app, which asks for the answer as a whole: what was sampled before and after the push is told
    apart."""
    old, prompt = HfLearner(seed=8), make_tokenizer().encode("User: hi\nAssistant:")
    learner.reset(seed=9)
    digests = [await model.publish(tmp_path / f"v{v}") for v, model in ((8, old), (9, learner))]
    transport = httpx.ASGITransport(await engine.openai_app(tiny_config()))
    await engine.update_weights(tmp_path / "v8", 8, digests[0])
    session = Sessions(idle_s=3600).open()
    with session.request():
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
            body = {"model": "policy", "prompt": prompt, "max_tokens": 200}
            so_far = engine.requests.tokens
            async with paced(engine):
                asking = [asyncio.create_task(client.post("/v1/completions", json=body)) for _ in range(16)]
                while engine.requests.tokens < so_far + 16 * 8:
                    await asyncio.sleep(0.005)
                await engine.update_weights(tmp_path / "v9", 9, digests[1])
            assert {reply.status_code for reply in await asyncio.gather(*asking)} == {200}
    spanning = [c for chain in session.trace.chains for _, c in chain.parts if len(set(c.versions.tolist())) == 2]
    assert session.trace.requests == 16
    assert spanning
    for c in spanning:
        switch = int((c.versions == 8).sum())
        assert worst(old, prompt, c, slice(0, switch)) <= TOLERANCE
        assert worst(learner, prompt, c, slice(switch, None)) <= TOLERANCE


async def test_vllms_own_api_runs_on_the_same_engine(engine, prompt):
    app = await engine.openai_app(tiny_config())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine") as client:
        model, *_ = (await client.get("/v1/models")).json()["data"]
        assert model["id"] == "policy"
        body = {"model": model["id"], "prompt": prompt, "max_tokens": 4, "return_token_ids": True}
        reply = (await client.post("/v1/completions", json=body)).json()
    assert 1 <= len(reply["choices"][0]["token_ids"]) <= 4


async def test_deltas_reach_every_layer_in_flight_and_one_that_is_damaged_is_followed_by_a_full_push(
    engine, learner, prompt, tmp_path, monkeypatch, caplog
):
    """Weights change that vLLM holds fused (q, k and v; gate and up) or tied (embedding and head)."""
    fused = (
        "layers.0.self_attn.k_proj.weight",
        "layers.1.self_attn.q_proj.bias",
        "layers.2.mlp.up_proj.weight",
        "embed_tokens.weight",
        "model.norm.weight",
    )
    monkeypatch.setattr(engine, "_node", NodeCopy(keep=True, root=tmp_path / "node"))
    transport = FileTransport(learner, tmp_path / "push", delta=True, deadline=PUSH)
    publisher = WeightPublisher(
        learner, [LocalEngine(engine)], tmp_path / "push", [prompt], tolerance=TOLERANCE, transport=transport
    )
    assert not (await publisher.publish(10)).delta
    old = copy.deepcopy(learner)
    learner.nudge(fused, by=0.05)
    written = learner.publish_changes

    async def patched_ahead(path, base_version):
        changes = await written(path, base_version)
        # the node's copy has the new weights, which the engine was not told to load
        engine._node.delta(path, 11, *changes)
        c = await engine.generate(prompt, Sampling(32), request_id="ahead")
        assert worst(old, prompt, c) <= TOLERANCE and worst(learner, prompt, c) > 100 * TOLERANCE, (
            "the engine samples from the file itself"
        )
        so_far = engine.stats()["tokens_generated"]
        await slow.enter_async_context(paced(engine))
        tasks.extend(
            asyncio.create_task(engine.generate(prompt, Sampling(200), request_id=f"delta{i}")) for i in range(24)
        )
        while engine.stats()["tokens_generated"] < so_far + 24:
            await asyncio.sleep(0)
        return changes  # the engine is frozen next

    tasks: list[asyncio.Task] = []
    learner.publish_changes = patched_ahead
    async with AsyncExitStack() as slow:
        report = await publisher.publish(11, must_differ=True)
    assert (
        report.delta
        and report.refused == 0
        and report.canary_max_diff <= TOLERANCE
        and report.parts["push_pause_s"] == engine.stats()["push_pause_s"] > 0
    )
    spanning = [c for c in await asyncio.gather(*tasks) if len(set(c.versions.tolist())) == 2]
    assert spanning
    for c in spanning:
        switch = int((c.versions == 10).sum())
        assert (
            worst(old, prompt, c, slice(0, switch)) <= TOLERANCE
            and worst(learner, prompt, c, slice(switch, None)) <= TOLERANCE
        )

    async def damaged(path, base_version):
        changes = await written(path, base_version)
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 4
        path.write_bytes(data)
        return changes

    learner.nudge(fused, by=-0.03)
    learner.publish_changes = damaged
    report = await publisher.publish(12, must_differ=True)
    assert any(isinstance(argument, DeltaRefused) for record in caplog.records for argument in record.args or ())
    assert not report.delta and report.refused == 0 and report.canary_max_diff <= TOLERANCE
    after = await engine.generate(prompt, Sampling(32), request_id="after damage")
    assert (after.versions == 12).all() and worst(learner, prompt, after) <= TOLERANCE


async def test_what_refused_weights_sampled_is_lost_and_not_returned(engine, learner, prompt, tmp_path):
    digest = await learner.publish(tmp_path / "w.safetensors")
    await engine.update_weights(tmp_path / "w.safetensors", 9, digest, Canary([prompt], 2, seed=0))
    held = asyncio.create_task(engine.generate(prompt, Sampling(4), request_id="held"))
    while len(engine.requests) == 0:
        await asyncio.sleep(0)
    while len(engine.requests):
        await asyncio.sleep(0.01)
    assert not held.done()
    engine.proof.refuse("5 nats")
    with pytest.raises(WeightsUnverified, match="5 nats"):
        await held
    engine.proof = type(engine.proof)()  # the next test wants a working engine


async def test_the_heartbeat_finds_an_engine_process_that_stands_still_though_the_actors_own_answers(engine, prompt):
    """vLLM computes in a process of its own: stopped, it keeps every request, and the actor would look well."""
    (process,) = engine._llm.engine_core.resources.engine_manager.processes
    core = psutil.Process(process.pid)
    await engine.alive()
    patience, engine._unresponsive = engine._unresponsive, Deadline(1.0, "timeouts.push_s / 2")
    core.suspend()
    try:
        kept = asyncio.create_task(engine.generate(prompt, Sampling(2), request_id="kept"))
        with pytest.raises(EngineError, match=r"timeouts\.push_s / 2 = 1 s"):
            await engine.alive()
        assert not kept.done()
    finally:
        core.resume()
        engine.broken, engine._unresponsive = None, patience  # the next test wants a working engine
    await kept
    await engine.alive()


async def test_a_push_that_fails_half_way_breaks_the_engine_and_frees_its_callers(engine, prompt, tmp_path):
    """Last: the engine is unusable afterwards."""
    await engine.begin_update()
    # frozen: it cannot have ended before
    waiting = asyncio.create_task(engine.generate(prompt, Sampling(256), request_id="caught"))
    await asyncio.sleep(0.02)
    with pytest.raises(WeightsUnverified, match="'receive'"):
        await engine.receive({"path": str(tmp_path / "missing.safetensors")})
    with pytest.raises(EngineError, match="'receive'"):
        await waiting
    with pytest.raises(EngineError, match="'receive'"):
        await engine.generate(prompt, Sampling(4), request_id="no")


async def test_what_the_environment_says_is_read_once(engine):
    """vLLM asks for its variables at each output of each request."""
    from vllm import envs

    assert envs._is_envs_cache_enabled()
