"""What OpenAI clients send that is no short chat: structured outputs, a system message that the template has no place
for, megabytes. On the real engine, over a real socket."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import httpx
import pytest
import pytest_asyncio

from openrlhf_tir.cluster.service import RolloutService
from openrlhf_tir.engines.openai_app import structured_outputs_lack
from openrlhf_tir.rollout.serving.app import build_app, serve

from ..support.sessions_actor import TOKEN, Actor

pytestmark = [pytest.mark.extended, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{{ m.role }}:{{ m.content }}<eos>{% endfor %}assistant:"
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def actor(engine):
    actor = Actor(engine)
    actor.envs.urls = SimpleNamespace(check=lambda env: None)
    yield actor


async def client_of(actor, template=None):
    """(a client, its server) of the actor's endpoints, whose tokenizer has this chat template."""
    tokenizer = actor.engine._llm.get_tokenizer()
    if template is not None:
        tokenizer.chat_template = template
    app = build_app(RolloutService(actor), token=TOKEN, vllm_app=await actor.engine.openai_app(actor.cfg))
    server, port = await serve(app)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=600), server


async def closed(client, server):
    await client.aclose()
    server.cancel()
    await asyncio.gather(server, return_exceptions=True)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def http(actor):
    client, server = await client_of(actor)
    yield client
    await closed(client, server)


def chat(*messages, **more):
    said = [{"role": role, "content": content} for role, content in messages]
    return {"model": "policy", "messages": said, "max_tokens": 24, "seed": 1, **more}


SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "answer",
        "schema": {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]},
    },
}


@pytest.mark.parametrize(
    "asked",
    [
        {"response_format": SCHEMA},
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"choice": ["yes", "no"]}},
        {"structured_outputs": {"regex": "[ab]{3}"}},
    ],
    ids=["schema", "object", "choice", "regex"],
)
async def test_structured_outputs_are_answered_where_their_packages_are_and_else_refused(http, asked):
    reply = await http.post("/v1/chat/completions", json=chat(("user", "hi"), **asked))
    if structured_outputs_lack():
        assert reply.status_code == 400 and structured_outputs_lack()[0] in reply.json()["error"]["message"]
        return
    assert reply.status_code == 200, reply.text
    said = reply.json()["choices"][0]["message"]["content"]
    if asked == {"response_format": SCHEMA} and reply.json()["choices"][0]["finish_reason"] == "stop":
        assert json.loads(said) == {"a": 1}
    if "choice" in str(asked.get("structured_outputs")):
        assert said in ("yes", "no")
    if "regex" in str(asked.get("structured_outputs")):
        assert len(said) == 3 and set(said) <= {"a", "b"}


async def test_megabytes_are_refused_before_they_are_tokenised(http):
    text = "word " * 1_400_000
    chats = await http.post("/v1/chat/completions", json=chat(("user", text)))
    texts = await http.post("/v1/completions", json={"model": "policy", "prompt": text, "max_tokens": 4})
    group = await http.post("/v1/groups", json={"prompt": text, "label": "1", "n": 1})
    assert (chats.status_code, texts.status_code, group.status_code) == (400, 400, 422)


async def test_a_system_message_stands_before_the_users_words_where_the_template_has_no_place_for_it(actor):
    tokenizer = actor.engine._llm.get_tokenizer()
    own = tokenizer.chat_template
    client, server = await client_of(actor, NO_SYSTEM)
    try:
        asked = chat(("system", "brief"), ("user", "hi"))
        plain = await client.post("/v1/chat/completions", json=asked)
        assert plain.status_code == 200, plain.text
        session = (await client.post("/sessions", json={})).json()["session_id"]
        reply = await client.post(f"/sessions/{session}/v1/chat/completions", json=asked)
        assert reply.status_code == 200, reply.text
        end = (await client.post(f"/sessions/{session}/reward", json={"reward": 1.0})).json()
        spelt = actor.runner.codec.decode(end["trajectory"]["prompt_ids"])
        assert spelt.index("brief") < spelt.index("hi") and len(end["notes"]) == 1
    finally:
        tokenizer.chat_template = own
        await closed(client, server)
