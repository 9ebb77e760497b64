"""The examples of litellm, openai-agents, smolagents and langgraph, each as its own program, on the real engine: what they do is trained.

The SDKs are installed into an environment of their own by pip. TIR_SDK_VENV names one that is there already.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
import pytest_asyncio

from openrlhf_tir.cluster.service import RolloutService
from openrlhf_tir.serving.app import build_app, serve
from openrlhf_tir.types import GroupKey, Task

from .sessions_actor import TOKEN, Actor

pytestmark = [pytest.mark.long, pytest.mark.asyncio(loop_scope="session")]
EXAMPLES = Path(__file__).parents[2] / "examples"
SDKS = {
    "litellm_agent": ["litellm"],
    "openai_agents_agent": ["openai-agents"],
    "smolagents_agent": ["smolagents[openai]"],
    "langgraph_agent": ["langgraph", "langchain-openai"],
}
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
async def actor(engine):
    actor = Actor(engine)
    cfg = actor.cfg.model_copy(update={"vllm": actor.cfg.vllm.model_copy(update={"tool_call_parser": "hermes"})})
    server, port = await serve(build_app(RolloutService(actor), token=TOKEN, vllm_app=await engine.openai_app(cfg)))
    actor.url = f"http://127.0.0.1:{port}"
    yield actor
    server.cancel()
    await asyncio.gather(server, return_exceptions=True)


@pytest.mark.parametrize("example", SDKS)
async def test_an_example_takes_tasks_and_what_its_sdk_asked_for_is_trained(actor, python, example, tmp_path):
    assert len((EXAMPLES / f"{example}.py").read_text().splitlines()) <= 30
    (tmp_path / "endpoints").mkdir()
    (tmp_path / "endpoints/rollout-0").write_text(actor.url)
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"TIR_ROLLOUT_TOKEN": TOKEN}
    with (tmp_path / "agent.log").open("w") as log:
        agent = subprocess.Popen([python, str(EXAMPLES / f"{example}.py"), str(tmp_path)], env=env, stdout=log, stderr=log)
    try:
        async with asyncio.timeout(DEADLINE_S):
            meta, group = await actor.runner.run(GroupKey(0, list(SDKS).index(example)), Task("hi", "2"))
    finally:
        agent.kill()
        agent.wait()
    assert meta.failed is None and meta.failures == {}, (meta.why, (tmp_path / "agent.log").read_text()[-2000:])
    assert len(group.valid) == 4 and all(t.model_tokens > 0 for t in group.valid) and meta.stats["requests"] >= 1
