"""An agent with the plain `openai` client, over a real socket, on the real engine: what it said is recorded to the
token and trained.

The reference for log-probs is a plain forward of the same weights by transformers.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import openai
import pytest
import pytest_asyncio

from openrlhf_tir.algorithms.advantages import get_estimator
from openrlhf_tir.cluster.service import RolloutService
from openrlhf_tir.learner.balance import assign_ranks
from openrlhf_tir.learner.rows import batch_samples
from openrlhf_tir.pipeline.group_metrics import rollout_metrics
from openrlhf_tir.rollout.serving.app import build_app, serve
from openrlhf_tir.rollout.serving.session_requests import REQUIRED_NOTE, STOP_NOTE, STRICT_NOTE, TOOLS_NOTE
from openrlhf_tir.types import BatchItem, GroupKey, Task, TrainBatch

from ...ordinary import ordinary_first
from ..support.sessions_actor import TOKEN, Actor
from ..support.tiny_model import HfLearner, make_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]
TOLERANCE = 1e-4
SDKS = json.loads((Path(__file__).parents[2] / "data/sdk_requests.json").read_text())
"""What agent SDKs send at their defaults (long prompts shortened): a question with a tool, and with its reply."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def actor(engine):
    actor = Actor(engine)
    server, port = await serve(
        build_app(RolloutService(actor), token=TOKEN, vllm_app=await engine.openai_app(actor.cfg))
    )
    actor.url = f"http://127.0.0.1:{port}"
    yield actor
    server.cancel()
    await asyncio.gather(server, return_exceptions=True)


@pytest_asyncio.fixture(loop_scope="session")
async def http(actor):
    import httpx

    async with httpx.AsyncClient(base_url=actor.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=600) as http:
        yield http


@pytest_asyncio.fixture(loop_scope="session")
async def session(http):
    """-> (its path, an OpenAI client of it)."""
    info = (await http.post("/sessions", json={})).json()
    async with openai.AsyncOpenAI(base_url=info["base_url"], api_key=TOKEN, max_retries=0) as client:
        yield f"/sessions/{info['session_id']}", client


async def ended(http, path: str) -> dict:
    return (await http.post(f"{path}/reward", json={"reward": 1.0})).json()


def model_segments(trajectory: dict) -> list[dict]:
    return [s for s in trajectory["segments"] if s["source"] == "model"]


def worst(trajectory: dict) -> float:
    """Largest difference of what was recorded and a forward over the trajectory, of sampled tokens, in nats."""
    parts = trajectory["segments"]
    response = [i for s in parts for i in s["token_ids"]]
    is_model = np.concatenate([np.full(len(s["token_ids"]), s["source"] == "model") for s in parts])
    recorded = np.concatenate([s["logprobs"] for s in parts])
    return float(np.abs(HfLearner(0).logprobs(trajectory["prompt_ids"], response) - recorded)[is_model].max())


async def converse(client, turns: int, **options) -> list[dict]:
    """A chat whose every reply goes back as it came. No spaces: vLLM loads the tiny tokenizer as Qwen2's, which spells
    them otherwise."""
    messages = [{"role": "user", "content": "hi"}]
    for turn in range(turns):
        reply = await client.chat.completions.create(
            model="policy", messages=messages, max_tokens=6, seed=turn, **options
        )
        messages += [
            {"role": "assistant", "content": reply.choices[0].message.content},
            {"role": "user", "content": f"more{turn}"},
        ]
    return messages


async def test_a_chat_is_recorded_to_the_token_with_log_probs_and_versions(http, session):
    path, client = session
    await converse(client, 3)
    end = await ended(http, path)
    assert (end["requests"], end["chains"], end["branch_tokens"]) == (3, 1, 0)
    t = end["trajectory"]
    assert [s["source"] for s in t["segments"]] == ["model", "env"] * 2 + ["model"]
    assert make_tokenizer().decode(t["prompt_ids"]) == "user:hi<eos>assistant:"
    for turn, s in enumerate(x for x in t["segments"] if x["source"] == "env"):
        between = make_tokenizer().decode(s["token_ids"])
        # an EOS that was sampled is the model's
        assert between.removeprefix("<eos>") == f"user:more{turn}<eos>assistant:"
    assert worst(t) <= TOLERANCE
    assert {v for s in model_segments(t) for v in s["versions"]} == {0}
    assert t["reward"] == 1.0


async def test_a_stream_is_recorded_as_an_answer_at_once_is(http, session):
    path, client = session
    said = ""
    stream = await client.chat.completions.create(
        model="policy", messages=[{"role": "user", "content": "hi"}], max_tokens=12, seed=5, stream=True
    )
    async for chunk in stream:
        said += chunk.choices[0].delta.content or "" if chunk.choices else ""
    whole = await client.chat.completions.create(
        model="policy", messages=[{"role": "user", "content": "hi"}], max_tokens=12, seed=5
    )
    assert whole.choices[0].message.content == said and said
    end = await ended(http, path)
    assert (end["requests"], end["chains"], 2 * end["branch_tokens"]) == (2, 2, end["model_tokens"])
    assert worst(end["trajectory"]) <= TOLERANCE


async def test_an_edited_history_starts_a_new_chain_and_wrong_tokens_are_never_recorded(http, session):
    path, client = session
    messages = await converse(client, 2)
    messages[1]["content"] = "something"
    await client.chat.completions.create(model="policy", messages=messages, max_tokens=32, seed=9)
    end = await ended(http, path)
    assert end["chains"] == 2 and end["branch_tokens"] > 0
    t = end["trajectory"]
    assert "something" in make_tokenizer().decode(t["prompt_ids"])
    assert len(t["segments"]) == 1 and worst(t) <= TOLERANCE


async def test_a_stop_string_does_not_break_the_chain(http, session):
    """The stop text was sampled: it stays in the answer, so the next prompt holds it and goes on from it."""
    path, client = session
    first = await client.chat.completions.create(
        model="policy", messages=[{"role": "user", "content": "hi"}], max_tokens=6, seed=0
    )
    stop = first.choices[0].message.content[3]
    messages = await converse(client, 3, stop=[stop])
    end = await ended(http, path)
    assert messages[1]["content"].endswith(stop) and len(messages[1]["content"]) <= 4
    assert (end["requests"], end["chains"]) == (4, 2) and worst(end["trajectory"]) <= TOLERANCE
    assert end["notes"] == [STOP_NOTE]


async def test_completions_by_token_ids_go_on_from_what_was_sampled(http, session):
    """The client that keeps tokens: nothing can be tokenised differently."""
    path, client = session
    prompt = make_tokenizer().encode("User: 1+1?\nAssistant:")
    extra = {"return_token_ids": True}
    first = (
        await client.completions.create(
            model="policy", prompt=prompt, max_tokens=8, seed=1, logprobs=1, extra_body=extra
        )
    ).choices[0]
    await client.completions.create(
        model="policy", prompt=[*prompt, *first.token_ids, 2], max_tokens=8, seed=2, extra_body=extra
    )
    t = (await ended(http, path))["trajectory"]
    assert t["prompt_ids"] == prompt
    assert t["segments"][0]["token_ids"] == first.token_ids and t["segments"][1]["token_ids"] == [2]
    assert np.allclose(t["segments"][0]["logprobs"], first.logprobs.token_logprobs, atol=1e-5)
    assert worst(t) <= TOLERANCE


@pytest.mark.parametrize(
    "option",
    [{"temperature": 0.7}, {"top_p": 0.9}, {"n": 2}, {"presence_penalty": 0.5}, {"logit_bias": {"5": 1}}],
    ids=str,
)
async def test_sampling_that_is_not_the_policys_is_refused_where_it_would_be_trained(session, option):
    _, client = session
    with pytest.raises(openai.BadRequestError, match=next(iter(option))):
        await converse(client, 1, **option)


async def test_a_session_may_override_what_its_client_asks_for(http):
    info = (await http.post("/sessions", json={"override_sampling": True})).json()
    async with openai.AsyncOpenAI(base_url=info["base_url"], api_key=TOKEN) as client:
        await converse(client, 1, temperature=0.1, top_p=0.5)
    free = (await http.post("/sessions", json={})).json()
    async with openai.AsyncOpenAI(base_url=free["base_url"], api_key=TOKEN) as client:
        await converse(client, 1)
    a, b = [(await ended(http, f"/sessions/{i['session_id']}"))["trajectory"] for i in (info, free)]
    assert a["segments"][0]["token_ids"] == b["segments"][0]["token_ids"]


async def test_a_wrong_key_is_refused_and_an_ended_session_takes_no_more(http, session):
    path, client = session
    with pytest.raises(openai.AuthenticationError):
        await converse(client.with_options(api_key="wrong"), 1)
    await ended(http, path)
    with pytest.raises(openai.NotFoundError):
        await converse(client, 1)


async def test_an_external_agents_group_is_what_the_learner_trains(actor, http):
    """Four samples of a task, each taken by an agent over HTTP, rewarded 0, 1, 2, 3 -> group -> the learner's rows."""
    rewards = iter((0.0, 1.0, 2.0, 3.0))

    async def agent() -> None:
        task = (await http.post("/agent/tasks", json={"wait_s": 30})).json()
        assert task["prompt"] == "What is 1+1?"
        async with openai.AsyncOpenAI(base_url=task["base_url"], api_key=TOKEN) as client:
            await converse(client, 2)
        await http.post(f"/sessions/{task['session_id']}/reward", json={"reward": next(rewards)})

    running = asyncio.create_task(actor.runner.run(GroupKey(0, 0), Task("What is 1+1?", "2")))
    await asyncio.gather(*(agent() for _ in range(4)))
    meta, group = await running
    assert meta.failed is None and meta.verdict.keep and sorted(meta.rewards) == [0, 1, 2, 3]
    row = rollout_metrics([meta])
    assert (row["agent/requests"], row["agent/chains"], row["agent/branch_tokens"]) == (2.0, 1.0, 0.0)
    batch = TrainBatch(0, [BatchItem(meta, group)], assign_ranks([meta], 1))
    samples = batch_samples(batch, [group], actor.cfg, get_estimator("group_norm"))
    for sample, reward in zip(samples, meta.rewards, strict=True):
        is_model = sample.trajectory.is_model
        assert sample.trained.tolist() == is_model.tolist() and 0 < is_model.sum() < len(is_model)
        assert np.sign(sample.advantages[is_model]).tolist() == [np.sign(reward - 1.5)] * int(is_model.sum())
        assert (sample.advantages[~is_model] == 0).all()


async def test_all_chains_of_a_session_that_branches_are_trained_each_token_once(actor, http):
    """A chat, a turn of it tried again, and a question of a sub-agent: three chains, one reward."""
    actor.runner.cfg = actor.cfg.model_copy(
        update={"rollout": actor.cfg.rollout.model_copy(update={"n_samples_per_prompt": 2})}
    )
    running = asyncio.create_task(actor.runner.run(GroupKey(0, 7), Task("q", "")))
    for reward in (0.0, 1.0):
        task = (await http.post("/agent/tasks", json={"wait_s": 30})).json()
        async with openai.AsyncOpenAI(base_url=task["base_url"], api_key=TOKEN) as client:
            messages = await converse(client, 2)
            for asked in (messages[:3], [{"role": "user", "content": "sub"}]):
                await client.chat.completions.create(model="policy", messages=asked, max_tokens=6, seed=77)
        end = (await http.post(f"/sessions/{task['session_id']}/reward", json={"reward": reward})).json()
        assert (end["requests"], end["chains"]) == (4, 3)
    meta, group = await running
    batch = TrainBatch(0, [BatchItem(meta, group)], assign_ranks([meta], 1))
    samples = batch_samples(batch, [group], actor.cfg, get_estimator("group_norm"))
    assert (
        len(samples) == 6 and sum(int(s.trained.sum()) for s in samples) == sum(meta.model_tokens) == batch.num_tokens
    )
    for first, reward in ((0, 0.0), (3, 1.0)):
        signs = {float(np.sign(a)) for s in samples[first : first + 3] for a in s.advantages[s.trained]}
        assert signs == {float(np.sign(reward - 0.5))}
    for s in samples:
        t = s.trajectory
        recorded = HfLearner(0).logprobs(t.prompt_ids, t.token_ids)
        assert np.abs(recorded - t.logprobs)[t.is_model].max() <= TOLERANCE


async def test_the_runs_own_reward_judges_a_session_that_says_none(actor, http):
    actor.runner.cfg = actor.cfg.model_copy(
        update={"rollout": actor.cfg.rollout.model_copy(update={"n_samples_per_prompt": 2})}
    )
    running = asyncio.create_task(actor.runner.run(GroupKey(0, 1), Task("q", "")))
    for _ in range(2):
        task = (await http.post("/agent/tasks", json={"wait_s": 30})).json()
        async with openai.AsyncOpenAI(base_url=task["base_url"], api_key=TOKEN) as client:
            await converse(client, 1)
        await http.post(f"/sessions/{task['session_id']}/reward", json={})
    meta, _ = await running
    assert meta.rewards == [float(n) for n in meta.model_tokens] and meta.stats["correct"] == 1.0


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def with_tools(actor):
    """The same actor as `--vllm.tool_call_parser hermes` serves it."""
    cfg = actor.cfg.model_copy(update={"vllm": actor.cfg.vllm.model_copy(update={"tool_call_parser": "hermes"})})
    server, port = await serve(
        build_app(RolloutService(actor), token=TOKEN, vllm_app=await actor.engine.openai_app(cfg))
    )
    import httpx

    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=600
    ) as http:
        yield http
    server.cancel()
    await asyncio.gather(server, return_exceptions=True)


@pytest.mark.parametrize("sdk", ordinary_first(SDKS, 1))
async def test_what_agent_sdks_send_at_their_defaults_is_served_and_recorded(with_tools, sdk):
    path = f"/sessions/{(await with_tools.post('/sessions', json={})).json()['session_id']}"
    for body in SDKS[sdk]:
        reply = await with_tools.post(f"{path}/v1/chat/completions", json=body)
        assert reply.status_code == 200, reply.text
        assert reply.json()["usage"]["completion_tokens"] > 0
    end = await ended(with_tools, path)
    assert end["requests"] == 2
    asked = json.dumps(SDKS[sdk])
    notes = (
        (STRICT_NOTE, '"strict"'),
        (REQUIRED_NOTE, '"tool_choice"'),
        (STOP_NOTE, '"stop"'),
        (TOOLS_NOTE, '"tools"'),
    )
    assert end["notes"] == [note for note, word in notes if word in asked]


OPTIONS = {
    "stream_options": {"stream": True, "stream_options": {"include_usage": True}},
    "parallel_tool_calls": {"parallel_tool_calls": False},
    "response_format text": {"response_format": {"type": "text"}},
    "store, metadata, user": {"store": False, "metadata": {"a": "b"}, "user": "u"},
    "max_completion_tokens": {"max_completion_tokens": 5},
}


@pytest.mark.parametrize("option", OPTIONS)
async def test_options_that_sdks_add_are_served(with_tools, option):
    path = f"/sessions/{(await with_tools.post('/sessions', json={})).json()['session_id']}"
    body = {**SDKS["litellm 1.106.2"][0], "max_tokens": 5, **OPTIONS[option]}
    reply = await with_tools.post(f"{path}/v1/chat/completions", json=body)
    assert reply.status_code == 200 and '"completion_tokens":' in reply.text.replace(" ", ""), reply.text
    assert (await ended(with_tools, path))["requests"] == 1


async def test_a_format_that_would_bend_the_policy_is_refused_in_one_line_of_openais_shape(with_tools):
    path = f"/sessions/{(await with_tools.post('/sessions', json={})).json()['session_id']}"
    body = {**SDKS["litellm 1.106.2"][0], "response_format": {"type": "json_object"}}
    reply = await with_tools.post(f"{path}/v1/chat/completions", json=body)
    error = reply.json()["error"]
    assert reply.status_code == 400 and "response_format" in error["message"], reply.text
    assert "\n" not in error["message"], reply.text
    assert "StructuredOutputsParams" not in error["message"], "names, no Python objects"


async def test_a_session_lists_the_model(with_tools):
    path = f"/sessions/{(await with_tools.post('/sessions', json={})).json()['session_id']}"
    assert "policy" in [m["id"] for m in (await with_tools.get(f"{path}/v1/models")).json()["data"]]


async def test_metrics_and_openapi_of_a_real_actor(http):
    text = (await http.get("/metrics")).text
    assert "tir_engine_tokens_generated_total" in text and 'tir_queue_wait_seconds_bucket{le="+Inf"}' in text
    paths = (await http.get("/openapi.json")).json()["paths"]
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/sessions", "/generate"} <= paths.keys()
