"""Traces look exactly like episodes, and only what the model wrote carries loss."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from miniatures.toy import traces
from miniatures.toy.task import Problem
from miniatures.toy.tokenizer import CHARACTERS, encode
from openrlhf_tir.protocol import StepReply
from openrlhf_tir.rollout.episode import Limits, run_episode
from openrlhf_tir.rollout.protocols.zerotir import ZeroTir
from openrlhf_tir.types import Completion

MUL = Problem("mul", "What is 7*8?", "print(7*8)", 56, (7, 8))
ADD = Problem("add1", "What is 1+2?", "print(1+2)", 3, (1, 2))


def text_of(trace: traces.ColdStartTrace, where=None) -> str:
    ids = trace.token_ids if where is None else trace.token_ids[where]
    return "".join(CHARACTERS[i] for i in ids)


def test_a_tool_trace_is_an_episode_character_by_character():
    expected = (
        "User: What is"
        " 7*8?\nAssistant:```python\nprint(7*8)\n```\n```output\n56\n\n```\n\n\n<answer>\\boxed{56}</answer>"
    )
    assert text_of(traces.tool_trace(MUL)) == expected


def test_prompt_and_tool_output_carry_no_loss():
    trace = traces.tool_trace(MUL)
    assert text_of(trace, trace.weights > 0) == "```python\nprint(7*8)\n```<answer>\\boxed{56}</answer>"
    assert set(trace.weights.tolist()) == {0.0, 1.0}


def test_digits_of_a_guess_weigh_little_and_those_of_a_learnable_sum_fully():
    guess, known = traces.text_trace(MUL), traces.text_trace(ADD)
    assert text_of(guess) == "User: What is 7*8?\nAssistant:<answer>\\boxed{56}</answer>"
    light = np.isclose(guess.weights, 0.2)
    assert text_of(guess, light) == "56"
    assert set(known.weights.tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
def test_the_tool_ratio_is_the_share_of_traces_with_code(ratio):
    rng = Random(0)
    used = ["```python" in text_of(traces.draw_trace(rng, ratio)) for _ in range(400)]
    assert np.mean(used) == pytest.approx(ratio, abs=0.06)


class ScriptedEngine:
    def __init__(self, *parts: str) -> None:
        self.parts = list(parts)

    async def generate(self, token_ids, sampling, *, request_id):
        text = self.parts.pop(0)
        ids = np.array(encode(text), np.int32)
        stop = max((s for s in sampling.stop if text.endswith(s)), key=len)
        return Completion(ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32), text, "stop", stop)


class PrintsFiftySix:
    async def reset(self):
        return ""

    async def step(self, action, *, step_id):
        assert action == "print(7*8)"
        return StepReply(session_id="s", step_id=step_id, observation="56\n")


class Codec:
    encode = staticmethod(encode)


async def test_an_episode_whose_model_writes_the_trace_has_the_trace_as_its_tokens():
    """The real turn loop, fed with the model's parts, inserts the very block that the trace masks."""
    trace = traces.tool_trace(MUL)
    prompt = encode(traces.prompt_of(MUL.question))
    engine = ScriptedEngine("```python", "\nprint(7*8)\n```", "<answer>\\boxed{56}</answer>")
    episode = await run_episode(
        prompt,
        index=0,
        engine=engine,
        env=PrintsFiftySix(),
        codec=Codec(),
        protocol=ZeroTir(max_calls=2),
        limits=Limits(140),
        request_id="r",
    )
    assert [*prompt, *episode.token_ids] == trace.token_ids.tolist()
    assert episode.is_model.tolist() == (trace.weights[len(prompt) :] > 0).tolist()
