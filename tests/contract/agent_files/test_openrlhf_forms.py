"""Files in the forms that OpenRLHF's examples have (forms/*.py), each in a real worker process: what they ask of the
engine, from whatever thread, is what is trained."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from openrlhf_tir.config import Reward
from openrlhf_tir.errors import EngineError
from openrlhf_tir.rewards.pool import RewardPool
from openrlhf_tir.types import Task
from tests.contract.test_remote_reward import says
from tests.ordinary import long_except
from tests.unit.rollout.protocols.agent_file.agent_fakes import one

pytestmark = pytest.mark.extended

FORMS = Path(__file__).parent / "forms"
CHAT_TOKENIZER = """
    def encode(self, text, add_special_tokens):
        return [ord(c) for c in text]

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        said = (m["content"] if m["role"] == "assistant" else f"[{m['content']}]" for m in messages)
        return "".join(said)
"""
VLLM = '''
import dataclasses


@dataclasses.dataclass
class SamplingParams:
    """vLLM's fields at vLLM's defaults, without the minute that its import takes on a busy machine."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: list[str] | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
'''


@pytest.fixture
def vllm(tmp_path, quick, monkeypatch):
    """A tokenizer with a chat template, and the module from which such files take `SamplingParams`.

    The event loops of the worker are in debug mode: one thread that touches another's loop gets an error, and not luck.
    """
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")
    place = tmp_path / "quick"
    (place / "transformers.py").write_text((place / "transformers.py").read_text() + CHAT_TOKENIZER)
    (place / "vllm").mkdir()
    (place / "vllm/sampling_params.py").write_text(VLLM)
    (place / "vllm/__init__.py").write_text("from .sampling_params import SamplingParams\n")


@pytest.mark.slow
async def test_an_endpoint_in_a_thread_of_the_file_asks_the_engine_from_there(agent_of, vllm):
    agent, engine = await agent_of((FORMS / "openai_server.py").read_text())
    found = await asyncio.gather(*(one(agent, engine, label) for label in ("", "blocking", "", "blocking")))
    for t in found:
        assert t.parts["on_main_thread"] == 0.0, "generate was called in the server's thread"
        assert [(s.source, agent.codec.decode(s.token_ids)) for s in t.segments] == [
            ("model", "one"),
            ("env", "[env]"),
            ("model", "two"),
        ]
        assert agent.codec.decode(t.prompt_ids) == "[Q. ]"
        assert set(t.logprobs[t.is_model]) == {-0.5} and set(t.versions[t.is_model]) == {3}, (
            "as the engine recorded them"
        )
        assert t.reward is None, "left to the run's own"
    assert len(engine.asked) == 8 and len(agent.workers[0].record) == 0


@pytest.mark.slow
async def test_an_engine_that_fails_under_such_an_endpoint_is_the_fault_and_not_the_file(agent_of, vllm):
    agent, engine = await agent_of((FORMS / "openai_server.py").read_text())
    engine.broken = True
    for label in ("", "blocking"):
        with pytest.raises(EngineError, match="the engine broke"):
            await one(agent, engine, label)
    engine.broken = False
    assert len((await one(agent, engine)).segments) == 3
    assert agent.workers[0].process.starts == 1


AGAIN = "one\n\nHuman: [WRONG]\nTry again.\n\nAssistant: two\n\nHuman: [RIGHT]\n"
TURNS = (
    "<|im_start|>user\nGuess a word.<|im_end|>\n<|im_start|>assistant\n",
    (
        "one<|im_end|>\n<|im_start|>user\nWrong, guess"
        " again.<|im_end|>\n<|im_start|>assistant\ntwo<|im_end|>\n<|im_start|>user\nRight.<|im_end|>"
    ),
)


LONG = pytest.mark.long


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "label", "text", "sampled", "reward", "parts"),
    [
        pytest.param("random_steps", "", AGAIN, "onetwo", 1.0, {"random_scores": 1.0, "correct": 1.0}, marks=LONG),
        ("game", "", "".join(TURNS), "onetwo", 0.5, {"turn_count": 2.0, "correct": 1.0}),
        pytest.param("single_turn", "one", "one", "one", 1.0, {"letters": 3.0, "correct": 1.0}, marks=LONG),
    ],
    ids=["random_steps", "game", "single_turn"],
)
async def test_a_form_runs_in_openrlhfs_own_executors(agent_of, tmp_path, form, label, text, sampled, reward, parts):
    from transformers import AutoTokenizer

    from miniatures.toy.tokenizer import save_tokenizer
    from openrlhf_tir.engines.codec import HfCodec

    save_tokenizer(tmp_path / "model")
    codec = HfCodec(AutoTokenizer.from_pretrained(tmp_path / "model"))
    agent, engine = await agent_of(
        (FORMS / f"{form}.py").read_text(), codec, model=str(tmp_path / "model"), **{"data.max_len": 400}
    )
    t = await one(agent, engine, label)
    assert t.text == text and codec.decode(t.token_ids[t.is_model]) == sampled
    assert (t.reward, t.parts) == (reward, parts)


@pytest.mark.slow
@pytest.mark.parametrize("form", long_except({"random_reward"}, ["math_reward", "random_reward"]))
async def test_a_form_of_a_remote_reward_scores_in_its_process(form):
    pool = RewardPool(Reward(remote_url=f"{FORMS / form}.py:reward_func"))
    try:
        answers = ["so Answer: 1/2\n", r"so \boxed{\frac{1}{2}}", r"so \boxed{2}"]
        found = await asyncio.gather(*(pool.score(says(text), Task("Half of 1? ", "1/2")) for text in answers))
    finally:
        await pool.stop()
    assert all(r.correct == (r.reward == 1.0) and r.reward in (0.0, 1.0) for r in found)
    if form == "math_reward":
        assert [r.reward for r in found] == [1.0, 1.0, 0.0]
        assert all("math_accuracy" in r.parts for r in found)
