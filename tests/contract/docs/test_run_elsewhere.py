"""Exported models elsewhere: the loops of docs/run_elsewhere.md say what the run's rollouts say; the tables hold."""

from __future__ import annotations

import asyncio
import re
import sys
from random import Random
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from env_servers.python_tir.env import judge
from env_servers.python_tir.isolation.bare import BareSandbox
from miniatures.toy import traces
from miniatures.toy.model import save_model
from miniatures.toy.task import Problem, draw
from openrlhf_tir.cluster.jobs import exported
from openrlhf_tir.config import Config, Env
from openrlhf_tir.data.templates import USER_ASSISTANT
from openrlhf_tir.engines.codec import HfCodec
from openrlhf_tir.engines.torch_engine import TorchEngine
from openrlhf_tir.protocol import StepReply
from openrlhf_tir.rollout import protocols
from openrlhf_tir.rollout.episode import Limits, run_episode
from openrlhf_tir.rollout.protocols.zerotir import ZeroTir
from openrlhf_tir.types import Sampling
from tests.step_reply import reply_of

from .docs_blocks import DOCS, block

pytestmark = pytest.mark.extended

CFG = Config(data={"input_template": "user_assistant"}, env={"protocol": "zerotir"})


def page(name: str, holds: str) -> ModuleType:
    """A file of the page as a module, importable by the next one."""
    module = ModuleType(name)
    sys.modules[name] = module
    exec(compile(block("run_elsewhere.md", "python", holds), f"docs/run_elsewhere.md:{name}", "exec"), module.__dict__)
    return module


@pytest.fixture
def elsewhere():
    yield page("elsewhere", "def answer")
    sys.modules.pop("elsewhere")


PROBLEMS = [
    draw(Random(0), "train"),
    Problem("broken", "What is 1/0?", "print(1/0)", 0, (1, 0)),
    Problem("flood", "Print a lot.", "print('ab '*200)", 1, (2, 0)),
    Problem("silent", "Print nothing.", "x=1", 2, (3, 0)),
    Problem("empty", "Write no code.", "", 3, (4, 0)),
]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    """The quickstart's model, fitted to a few of its traces until it writes their code, exported as by a run."""
    import torch
    from transformers import AutoModelForCausalLM

    directory = tmp_path_factory.mktemp("elsewhere") / "model"
    save_model(directory, seed=0)
    model = AutoModelForCausalLM.from_pretrained(directory)
    rows = [traces.tool_trace(p) for p in PROBLEMS]
    width = max(len(r.token_ids) for r in rows)
    ids = torch.tensor(np.stack([np.pad(r.token_ids, (0, width - len(r.token_ids))) for r in rows])).long()
    weights = torch.tensor(np.stack([np.pad(r.weights, (0, width - len(r.weights))) for r in rows]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(60):
        logits = model(ids).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        optimizer.zero_grad()
        (loss * weights[:, 1:].flatten()).sum().div(weights.sum()).backward()
        optimizer.step()
    model.save_pretrained(directory)
    exported.complete(CFG, directory)
    return directory


class LocalEnv:
    """The python_tir server's sandbox and its words, without the server."""

    server = None

    def __init__(self, sandbox: BareSandbox) -> None:
        self.sandbox = sandbox

    async def reset(self) -> str:
        return ""

    async def step(self, action: str, *, step_id: int) -> StepReply:
        return reply_of(judge(await self.sandbox.run(action)), step_id)


@pytest.fixture(scope="module")
def loaded(model_dir):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(model_dir).eval(), AutoTokenizer.from_pretrained(model_dir)


@pytest.fixture(scope="module")
def rolled(loaded) -> dict[str, str]:
    """question -> what a rollout of ours says, greedily: our engine, episode, turn protocol and sandbox."""
    model, tokenizer = loaded
    engine, codec = TorchEngine(model, HfCodec(tokenizer)), HfCodec(tokenizer)

    async def roll(question: str) -> str:
        trajectory = await run_episode(
            codec.encode_prompt(USER_ASSISTANT.replace("{input}", question)),
            index=0,
            engine=engine,
            env=LocalEnv(BareSandbox()),
            codec=codec,
            protocol=ZeroTir(max_calls=2),
            limits=Limits(max_new_tokens=140, temperature=0.0),
            request_id=question,
        )
        assert trajectory.failed is None
        return trajectory.text

    questions = [p.question for p in PROBLEMS] + [draw(Random(1), "test").question]
    return {q: asyncio.run(roll(q)) for q in questions}


@pytest.mark.slow
def test_plain_transformers_says_what_the_rollouts_say(elsewhere, loaded, rolled):
    sample = elsewhere.transformers_sampler(*loaded)
    assert {q: elsewhere.answer(q, sample, loaded[1]) for q in rolled} == rolled
    assert rolled[PROBLEMS[0].question].startswith(
        f"```python\n{PROBLEMS[0].code}\n```\n```output\n{PROBLEMS[0].answer}\n\n```\n\n\n"
    ), "the model does call"
    assert "ZeroDivisionError" in rolled["What is 1/0?"] and elsewhere.TOO_LONG in rolled["Print a lot."]
    assert "```output\n\n```\n\n\n" in rolled["Print nothing."] and "output" not in rolled["Write no code."][:20]


@pytest.mark.slow
def test_the_loop_over_an_openai_server_says_the_same(elsewhere, loaded, rolled):
    """The server is a stand-in: our engine behind the fields of the OpenAI API that the loop uses."""
    model, tokenizer = loaded
    engine = TorchEngine(model, HfCodec(tokenizer))

    def create(*, model, prompt, max_tokens, temperature, stop, extra_body):
        assert extra_body == {"include_stop_str_in_output": True, "return_token_ids": True}
        done = asyncio.run(
            engine.generate(prompt, Sampling(max_tokens, tuple(stop), temperature=temperature), request_id="r")
        )
        return SimpleNamespace(choices=[SimpleNamespace(token_ids=done.token_ids.tolist(), text=done.text)])

    client = SimpleNamespace(completions=SimpleNamespace(create=create))
    server = page("elsewhere_vllm", "def server_sampler")
    sample = server.server_sampler(client, "model")
    assert {q: elsewhere.answer(q, sample, tokenizer) for q in rolled} == rolled


def test_the_loop_of_messages_shows_one_reply_for_the_calls_of_a_message_and_ends_when_they_are_used_up():
    """The server is a stand-in that always calls two functions, as long as it is asked."""
    asked: list[list[dict]] = []

    class Message(SimpleNamespace):
        def model_dump(self, *, exclude_none):
            assert exclude_none
            return {"role": "assistant"}

    def create(*, model, messages, tools):
        asked.append(list(messages))
        functions = [SimpleNamespace(name=name, arguments='{"x": 1}') for name in ("f", "g")]
        calls = [SimpleNamespace(id=f"id_{f.name}", function=f) for f in functions]
        return SimpleNamespace(choices=[SimpleNamespace(message=Message(content="words", tool_calls=calls))])

    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    ran = []
    loop = page("elsewhere_messages", "def last_message").last_message
    assert loop(client, "model", "Go.", [], lambda calls: ran.append(calls) or " 7\n", max_calls=1) == "words"
    assert ran == [[{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {"x": 1}}]]
    assert asked[-1] == [
        {"role": "user", "content": "Go."},
        {"role": "assistant"},
        {"role": "tool", "tool_call_id": "id_f", "content": "7"},
    ]


def test_the_blocks_of_the_page_are_those_of_the_protocols():
    """Each row's literal texts around the output, against what the protocol inserts."""
    text = (DOCS / "run_elsewhere.md").read_text()
    for name in protocols.PROTOCOLS:
        if name in ("zerotir", "plain") or protocols.of_messages(protocols.load(name)):
            continue
        (row,) = [line for line in text.splitlines() if line.startswith("|") and f"`{name}`" in line.split("|")[1]]
        shown = row.split("|")[3]
        before, after = [
            piece.strip("` ").replace("\\n", "\n") for piece in re.split(r"\+ \w+ \+", shown.partition(";")[0])
        ]
        protocol = protocols.make(Env(protocol=name))
        if name == "function":
            protocol.names = "NAME"
        assert protocol.insertion(" 56\n").replace("56", "|") == f"{before}|{after}".replace("`\n```\n", "\n```\n"), (
            name
        )
    assert ZeroTir(max_calls=1).insertion("56\n") == "\n```output\n56\n\n```\n\n\n"
    assert "\\n```output\\n56\\n\\n```\\n\\n\\n" in text
