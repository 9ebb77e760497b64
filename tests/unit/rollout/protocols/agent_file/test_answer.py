"""What an agent file may return and send: OpenRLHF's interface, each departure from it named."""

from __future__ import annotations

import asyncio
import re

import numpy as np
import pytest

from openrlhf_tir.errors import ConfigError
from openrlhf_tir.rollout.protocols.agent_file.answer import answer
from openrlhf_tir.rollout.protocols.agent_file.instance import CallLate, Deadlines, check_step, recorded
from openrlhf_tir.rollout.protocols.agent_file.llm_engine import RUN, LlmEngine, Run, request_of, sampling_params
from openrlhf_tir.rollout.protocols.agent_file.place import AGENT
from openrlhf_tir.user_code import plugins

GOOD = {
    "observation_tokens": [1, 2],
    "action_ranges": [(1, 2)],
    "reward": np.array([0.5]),
    "scores": None,
    "extra_logs": {"a": np.float32(2)},
}


class OneNumber:
    """A tensor of one number, as far as rewards are concerned."""

    def __init__(self, value=1.0):
        self.value = value

    def item(self):
        return self.value


STEP = {"rewards": OneNumber(), "environment_feedback": "", "done": False}


def test_tensors_become_numbers():
    assert answer(GOOD, 3) == {
        "observation_tokens": [1, 2],
        "action_ranges": [[1, 2]],
        "reward": 0.5,
        "scores": None,
        "truncated": False,
        "extra_logs": {"a": 2.0},
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"reward": float("nan")}, r"reward .*nan"),
        ({"reward": "high"}, r"reward .*'high' \(str\)"),
        ({"reward": 10**400}, r"reward .*\(int\)"),
        ({"extra_logs": {"a": "b"}}, r"extra_logs\['a'\] .*'b'"),
        ({"extra_logs": 3}, r"extra_logs .*int"),
        ({"mm_train_inputs": {}}, "mm_train_inputs"),
        ({"observation_tokens": [1, -100]}, "observation_tokens .*-100"),
        ({"observation_tokens": [1, 3]}, "observation_tokens .*3,"),
    ],
)
def test_what_is_no_number_is_named(change, said):
    assert answer(GOOD, 3)
    with pytest.raises(ValueError, match=said):
        answer(GOOD | change, 3)


def test_a_missing_field_is_named():
    with pytest.raises(ValueError, match="observation_tokens, action_ranges"):
        answer({"reward": 1.0}, 3)
    with pytest.raises(ValueError, match="NoneType"):
        answer(None, 3)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, "None"),
        ({"rewards": OneNumber()}, "environment_feedback, done"),
        (STEP | {"rewards": 1.0}, r'"rewards" = 1.0 \(float\)'),
        (STEP | {"environment_feedback": 3}, "environment_feedback"),
        (STEP | {"environment_images": ["png"]}, "environment_images"),
    ],
)
def test_a_step_that_openrlhf_could_not_use_says_why(result, said):
    with pytest.raises(TypeError, match=said):
        check_step(result)


class Game:
    """An agent instance: each step is worth 1."""

    async def reset(self, states):
        if states["observation"] == "wait":
            await asyncio.sleep(3600)
        return {"observation": states["observation"]}

    async def step(self, states):
        if states["action_text"] == "wait":
            await asyncio.sleep(3600)
        return STEP | {"environment_feedback": "seen", "done": True}


DEADLINES = Deadlines(reset=60.0, step=60.0)


async def test_steps_are_recorded_with_their_rewards():
    run = Run(0)
    RUN.set(run)
    game = recorded(Game, DEADLINES)()
    assert await game.reset({"observation": "Q"}) == {"observation": "Q"}
    await game.step({"action_text": "A"})
    (call,) = run.calls
    assert (call["action"], call["observation"], call["reward"], call["done"]) == ("A", "seen", 1.0, True)
    assert type(game).__name__ == "Game"


async def test_what_a_method_returns_wrongly_is_told_at_that_method():
    class Wrong(Game):
        async def reset(self, states):
            return None

        async def step(self, states):
            return {"rewards": 1.0, "environment_feedback": "", "done": True}

    game = recorded(Wrong, DEADLINES)()
    for call, method in (
        (game.reset({"observation": "Q"}), Wrong.reset),
        (game.step({"action_text": "A"}), Wrong.step),
    ):
        with pytest.raises(TypeError) as caught:
            await call
        assert caught.value.place == f"{__file__}:{method.__code__.co_firstlineno}"


@pytest.mark.parametrize("call", ["reset", "step"])
async def test_a_call_that_does_not_end_misses_its_deadline_and_is_told_the_setting(call):
    game = recorded(Game, Deadlines(reset=0.03, step=0.01))()
    with pytest.raises(CallLate, match=r"env\.step_timeout_s = 0\.01"):
        await getattr(game, call)({"action_text": "wait", "observation": "wait"})


async def test_a_constructor_that_openrlhfs_older_examples_make_async_is_awaited():
    class Old(Game):
        async def __init__(self):
            self.ready = True

    game = recorded(Old, DEADLINES)()
    await game.reset({"observation": "Q"})
    assert game.ready


def test_only_the_policys_own_distribution_may_be_asked_for():
    # These are vLLM's own parameters where another test of this process has loaded vLLM.
    asked = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 5}
    assert request_of(sampling_params(**asked, stop="</a>")) == {
        "max_tokens": 5,
        "temperature": 1.0,
        "top_p": 1.0,
        "stop": ["</a>"],
    }
    with pytest.raises(ValueError, match=r"sampling_params\.repetition_penalty = 1\.2"):
        request_of(sampling_params(**asked, repetition_penalty=1.2))


class Words:
    def decode(self, ids, skip_special_tokens):
        assert not skip_special_tokens, "OpenRLHF's texts hold them"
        return "".join(chr(i) for i in ids)


async def test_an_answer_has_vllms_shape_and_is_cut_at_the_stop_string():
    sent = []
    engine = LlmEngine(sent.append, Words())
    asking = asyncio.create_task(engine.generate((1, 2), sampling_params(temperature=1.0)))
    await asyncio.sleep(0)
    (request,) = sent
    assert request["prompt"] == [1, 2] and request["run"] is None
    ids = [ord(c) for c in "a;b"]
    engine.answered(
        {
            "completion": request["generate"],
            "token_ids": ids,
            "logprobs": [-1.0, -2.0, -3.0],
            "finish_reason": "stop",
            "stop_reason": ";",
        }
    )
    output = (await asking).outputs[0]
    assert (output.text, output.token_ids, output.finish_reason) == ("a;", ids, "stop")
    assert [output.logprobs[i][ids[i]].logprob for i in range(3)] == [-1.0, -2.0, -3.0]


async def test_a_request_that_is_given_up_is_taken_back():
    sent = []
    engine = LlmEngine(sent.append, Words())
    asking = asyncio.create_task(engine.generate([1], sampling_params(temperature=1.0)))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert sent[1] == {"abort": sent[0]["generate"]} and engine.get_num_unfinished_requests() == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n", "'AgentExecutor'"),
        ("AgentExecutor = 3\n", r"agent\.py: AgentExecutor .*\bint\b"),
        ("class AgentExecutor:\n    pass\n", r"agent\.py:1: AgentExecutor .*`async def execute`"),
        (
            "class AgentExecutor:\n    async def execute(self, prompt):\n        ...\n",
            r"agent\.py:1: AgentExecutor\.execute\(.*got an unexpected keyword",
        ),
        (
            (
                "class AgentExecutor:\n    def __init__(self, max_steps):\n        ...\n    async def execute(self,"
                " **kwargs):\n        ...\n"
            ),
            "'max_steps'",
        ),
        ("import no_such_thing_here\n", r"agent\.py:1: ModuleNotFoundError"),
    ],
)
def test_a_mistake_in_the_file_names_file_line_and_what_was_expected(tmp_path, text, said):
    (tmp_path / "agent.py").write_text(text)
    with pytest.raises(ConfigError) as e:
        plugins.load(AGENT, f"{tmp_path / 'agent.py'}:AgentExecutor")
    assert re.search(said, str(e.value)) and str(e.value).startswith("train.agent_func_path = ")
