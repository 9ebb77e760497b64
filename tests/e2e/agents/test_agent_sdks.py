"""The examples of litellm, openai-agents, smolagents and langgraph, each as its own program, on the real engine: what
they do is trained.

The SDKs are installed into an environment of their own by pip. TIR_SDK_VENV names one that is there already.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import pytest_asyncio

from openrlhf_tir.cluster.service import RolloutService
from openrlhf_tir.config import Config
from openrlhf_tir.engines.vllm_engine import VllmEngine
from openrlhf_tir.rollout.serving.app import build_app, serve
from openrlhf_tir.types import GroupKey, Task

from ..support.sessions_actor import TOKEN, Actor
from ..support.tiny_model import save_tiny

pytestmark = [pytest.mark.long, pytest.mark.asyncio(loop_scope="session")]
EXAMPLES = Path(__file__).parents[3] / "examples"
SDKS = {
    "litellm_agent": ["litellm"],
    "openai_agents_agent": ["openai-agents"],
    "smolagents_agent": ["smolagents[openai]"],
    "langgraph_agent": ["langgraph", "langchain-openai"],
}
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{{ m.role }}:{{ m.content or '' }}<eos>{% endfor %}assistant:"
)
CONTEXT = 6144
DEADLINE_S = 300
"""Of a group of four samples; an agent that never comes is a failure, not a wait."""


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> str:
    venv = os.environ.get("TIR_SDK_VENV")
    if venv is None:
        venv = str(tmp_path_factory.mktemp("sdks") / "venv")
        subprocess.run([sys.executable, "-m", "venv", venv], check=True, timeout=120)
        packages = [name for names in SDKS.values() for name in names]
        subprocess.run([f"{venv}/bin/pip", "install", "-q", "httpx", *packages], check=True, timeout=1800)
    return f"{venv}/bin/python"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def actor(tmp_path_factory):
    """The tiny model with room for a framework's system prompt, a character a token; its positions are rotations, so
    there is no table to fill."""
    model = save_tiny(tmp_path_factory.mktemp("model"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    cfg = Config(
        vllm={"sync_backend": "file", "kv_cache_mib": 128, "max_num_seqs": 16, "tool_call_parser": "hermes"},
        ds={"param_dtype": "fp32"},
        data={"max_len": CONTEXT},
        rollout={"max_new_tokens": 256},
    )
    engine = await VllmEngine.start(str(model), cfg)
    actor = Actor(engine, cfg)
    server, port = await serve(build_app(RolloutService(actor), token=TOKEN, vllm_app=await engine.openai_app(cfg)))
    actor.url = f"http://127.0.0.1:{port}"
    yield actor
    server.cancel()
    await asyncio.gather(server, return_exceptions=True)
    await engine.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def without_system(actor):
    """The same engine with a chat template that raises for a system message."""
    tokenizer = actor.engine._llm.get_tokenizer()
    own = tokenizer.chat_template
    tokenizer.chat_template = NO_SYSTEM
    app = build_app(RolloutService(actor), token=TOKEN, vllm_app=await actor.engine.openai_app(actor.cfg))
    server, port = await serve(app)
    with_system = actor.url
    actor.url = f"http://127.0.0.1:{port}"
    yield actor
    actor.url = with_system
    tokenizer.chat_template = own
    server.cancel()
    await asyncio.gather(server, return_exceptions=True)


async def trained(actor, python, example, key, tmp_path):
    """Run an example beside a group of four tasks, and check that what it asked for is trained."""
    (tmp_path / "endpoints").mkdir()
    (tmp_path / "endpoints/rollout-0").write_text(actor.url)
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"TIR_ROLLOUT_TOKEN": TOKEN}
    with (tmp_path / "agent.log").open("w") as log:
        agent = subprocess.Popen(
            [python, str(EXAMPLES / f"{example}.py"), str(tmp_path)], env=env, stdout=log, stderr=log
        )
    try:
        async with asyncio.timeout(DEADLINE_S):
            meta, group = await actor.runner.run(key, Task("hi", "2"))
    finally:
        agent.kill()
        agent.wait()
    assert meta.failed is None and meta.failures == {}, (meta.why, (tmp_path / "agent.log").read_text()[-2000:])
    assert len(group.valid) == 4 and all(t.model_tokens > 0 for t in group.valid) and meta.stats["requests"] >= 1


@pytest.mark.parametrize("example", SDKS)
async def test_an_example_takes_tasks_and_what_its_sdk_asked_for_is_trained(actor, python, example, tmp_path):
    await trained(actor, python, example, GroupKey(0, list(SDKS).index(example)), tmp_path)


@pytest.mark.parametrize("example", ["openai_agents_agent", "smolagents_agent"])
async def test_an_sdk_that_sends_a_system_message_works_where_the_template_has_none(
    without_system, python, example, tmp_path
):
    await trained(without_system, python, example, GroupKey(1, list(SDKS).index(example)), tmp_path)
