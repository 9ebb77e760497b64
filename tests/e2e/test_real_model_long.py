"""SmolLM2 from its package in the places where other tests have a tiny model: a push into responses in flight, and the
OpenAI endpoint with tools.

The reference of every log-prob is a forward pass of the same weights by plain transformers, in the same precision.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
import pytest_asyncio

from benchmarks.crash_trial import ROOT
from openrlhf_tir.cluster.service import RolloutService
from openrlhf_tir.config import Config
from openrlhf_tir.engines.local_engine import LocalEngine
from openrlhf_tir.engines.vllm_engine import VllmEngine
from openrlhf_tir.rollout.serving.app import build_app, serve
from openrlhf_tir.types import Sampling
from openrlhf_tir.weights.publisher import WeightPublisher

from .support.engine_pace import paced
from .support.sessions_actor import TOKEN, Actor
from .support.tiny_model import HfLearner
from .test_real_model import needs_smollm2

pytestmark = [pytest.mark.long, needs_smollm2, pytest.mark.asyncio(loop_scope="module")]
TOLERANCE = 0.15
"""Mean difference of the log-probs of right weights, in nats. bf16 and fp32 of the same weights differ by .06."""
OTHER = 0.05
"""Added to every tenth weight this makes another model: its log-probs differ by more than a nat on the average."""
TOOLS = json.loads((ROOT / "tests/data/sdk_requests.json").read_text())["litellm 1.106.2"][0]["tools"]
TEMPLATE_WITH_TOOLS = """\
<|im_start|>system
You answer with the tools.
{% for tool in tools or [] %}
{{ tool | tojson }}
{% endfor %}
A call is written as <tool_call>
{"name": NAME, "arguments": {...}}
</tool_call><|im_end|>
{% for message in messages %}
<|im_start|>{{ 'user' if message.role == 'tool' else message.role }}
{% if message.role == 'tool' %}
<tool_response>
{{ message.content }}
</tool_response>
{%- else %}
{{ message.content or '' }}
{%- endif %}
{% for call in message.tool_calls or [] %}
<tool_call>
{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
</tool_call>
{%- endfor %}
<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}"""
"""SmolLM2's own template shows no tools. In Hermes' form, which vLLM's parser of that name reads."""


def config() -> Config:
    return Config(
        vllm={"sync_backend": "file", "kv_cache_mib": 64, "max_num_seqs": 16, "tool_call_parser": "hermes"},
        ds={"param_dtype": "bf16"},
        data={"max_len": 512},
        rollout={"max_new_tokens": 96},
    )


class Weights(HfLearner):
    """A Learner as far as pushes go, with the weights of a model's directory in bf16."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        super().__init__(seed=0)

    def reset(self, seed: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(self.directory, dtype=torch.bfloat16).eval()

    def apart(self, prompt: list[int], completion, part: slice = slice(None)) -> float:
        """Return the mean difference between an engine's log-probs and this model's, in nats."""
        return float(np.abs(self.logprobs(prompt, completion.token_ids) - completion.logprobs)[part].mean())


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("smollm2") / "model"
    command = [sys.executable, "-m", "openrlhf_tir.cli", "model", "smollm2", "--out", str(out)]
    subprocess.run(command, cwd=ROOT, check=True)
    return out


@pytest.fixture(scope="module")
def tokenizer(model):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)


@pytest.fixture(scope="module")
def prompts(tokenizer) -> list[list[int]]:
    """Return sixteen tokenised questions, those of both rounds of a proof."""
    return [
        tokenizer(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": f"Tell me a long story about {number} animals."}],
                tokenize=False,
                add_generation_prompt=True,
            ),
            add_special_tokens=False,
        )["input_ids"]
        for number in range(2, 18)
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model, tmp_path_factory):
    """An engine in bf16 on the same weights with a chat template that shows tools."""
    directory = tmp_path_factory.mktemp("with_tools") / "model"
    shutil.copytree(model, directory, copy_function=os.link)
    (directory / "chat_template.jinja").unlink()  # the other name of this file stays as it is
    (directory / "chat_template.jinja").write_text(TEMPLATE_WITH_TOOLS)
    engine = await VllmEngine.start(str(directory), config())
    yield engine
    await engine.stop()


async def test_an_agent_calls_a_tool_over_the_openai_endpoint_and_answers_with_its_result(engine, model, tokenizer):
    """Greedily, after two examples: without them a model of this size calls nothing."""
    cfg = config()
    actor = Actor(engine, cfg, tokenizer)
    app = build_app(RolloutService(actor), token=TOKEN, vllm_app=await engine.openai_app(cfg))
    server, port = await serve(app)
    messages = [message for a, b in ((12, 31), (45, 19)) for message in example(a, b)]
    messages.append({"role": "user", "content": "What is 37 * 24?"})
    asked = {"model": "policy", "tools": TOOLS, "temperature": 0.0, "max_tokens": 40}
    url = f"http://127.0.0.1:{port}"
    try:
        async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=1800) as http:
            session = (await http.post("/sessions", json={"temperature": 0.0})).json()
            async with openai.AsyncOpenAI(
                base_url=session["base_url"], api_key=TOKEN, max_retries=0, timeout=1800
            ) as client:
                reply = (await client.chat.completions.create(messages=messages, **asked)).choices[0]
                assert reply.finish_reason == "tool_calls"
                [call] = reply.message.tool_calls
                assert call.function.name == "calculate"
                assert "".join(json.loads(call.function.arguments)["expression"].split()) == "37*24"
                messages.append(reply.message.model_dump(exclude_none=True))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": str(37 * 24)})
                answer = (await client.chat.completions.create(messages=messages, **asked)).choices[0]
                assert answer.message.content
            end = (await http.post(f"/sessions/{session['session_id']}/reward", json={"reward": 1.0})).json()
    finally:
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)

    assert (end["requests"], end["chains"], end["notes"]) == (2, 1, [])
    trajectory = end["trajectory"]
    segments = trajectory["segments"]
    assert [segment["source"] for segment in segments] == ["model", "env", "model"]
    assert "888" in tokenizer.decode(segments[1]["token_ids"])
    response = [token for segment in segments for token in segment["token_ids"]]
    recorded = np.concatenate([segment["logprobs"] for segment in segments])
    is_model = np.concatenate([np.full(len(s["token_ids"]), s["source"] == "model") for s in segments])
    expected = Weights(model).logprobs(trajectory["prompt_ids"], response)
    assert np.abs(expected - recorded)[is_model].mean() <= TOLERANCE


def example(a: int, b: int) -> list[dict[str, object]]:
    """Return the messages of a question that a call of the tool answers."""
    call = {"name": "calculate", "arguments": json.dumps({"expression": f"{a} * {b}"})}
    return [
        {"role": "user", "content": f"What is {a} * {b}?"},
        {"role": "assistant", "tool_calls": [{"id": f"call-{a}", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": f"call-{a}", "content": str(a * b)},
        {"role": "assistant", "content": f"{a} * {b} = {a * b}"},
    ]


async def test_responses_in_flight_go_on_with_the_pushed_weights_and_say_so(engine, model, prompts, tmp_path):
    """Before the switch the log-probs are the old model's, from there on the new one's over the recomputed prefix."""
    old, new = Weights(model), Weights(model)
    publisher = WeightPublisher(new, [LocalEngine(engine)], tmp_path / "push", prompts, tolerance=None, canary_tokens=4)
    await publisher.calibrate()  # both sides have the same weights now
    new.nudge([""], by=OTHER)
    so_far = engine.requests.tokens
    async with paced(engine, step_s=1.0):
        tasks = [
            asyncio.create_task(engine.generate(prompt, Sampling(96, seed=0), request_id=f"fly{i}"))
            for i, prompt in enumerate(prompts[:4])
        ]
        while engine.requests.tokens < so_far + 4 * 6:
            await asyncio.sleep(0.05)
        report = await publisher.publish(1, must_differ=True)
    completions = await asyncio.gather(*tasks)

    assert report.refused == 0 and report.canary_excess <= 1
    spanning = [(p, c) for p, c in zip(prompts, completions, strict=False) if len(set(c.versions.tolist())) == 2]
    assert spanning
    for prompt, completion in spanning:
        switch = int((completion.versions == 0).sum())
        assert completion.versions.tolist() == [0] * switch + [1] * (len(completion.versions) - switch)
        sampled_before, sampled_after = slice(0, switch), slice(switch, None)
        assert old.apart(prompt, completion, sampled_before) <= TOLERANCE
        assert new.apart(prompt, completion, sampled_after) <= TOLERANCE
        assert new.apart(prompt, completion, sampled_before) > 2 * TOLERANCE
