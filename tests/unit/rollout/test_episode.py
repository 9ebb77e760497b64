"""Episodes, worked by hand on one token per character: who wrote what, budgets, faults."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_tir.errors import EngineError, EnvTimeout
from openrlhf_tir.protocol import StepReply
from openrlhf_tir.rollout.episode import Limits, run_episode
from openrlhf_tir.rollout.protocols.zerotir import TOO_LONG, USED_UP, ZeroTir
from openrlhf_tir.types import Completion


class CharCodec:
    def encode(self, text):
        return [ord(c) for c in text]

    encode_prompt = encode

    def decode(self, token_ids):
        return "".join(map(chr, token_ids))


class PlayedEngine:
    """Answers from a list of (text, stop_reason); keeps the contexts that it was asked to continue."""

    def __init__(self, *answers, version=3):
        self.answers, self.contexts, self.version = list(answers), [], version
        self.first_versions: list[int | None] = []

    async def generate(self, token_ids, sampling, *, request_id):
        self.contexts.append(list(token_ids))
        self.first_versions.append(sampling.first_version)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        text, stop = answer
        ids = np.array([ord(c) for c in text], np.int32)
        n = len(ids)
        return Completion(
            ids,
            np.full(n, -0.5, np.float32),
            np.full(n, self.version, np.int32),
            text,
            "length" if stop is None else "stop",
            stop,
        )


class PlayedEnv:
    server = None

    def __init__(self, *outputs, first=""):
        self.outputs, self.first, self.steps = list(outputs), first, []

    async def reset(self):
        return self.first

    async def step(self, action, *, step_id):
        self.steps.append((step_id, action))
        output = self.outputs.pop(0)
        if isinstance(output, Exception):
            raise output
        return StepReply(session_id="s", step_id=step_id, observation=output)


async def episode(engine, env, *, prompt="Q", max_new=500, N=2, budget_message=False, output_max=256):
    return await run_episode(
        [ord(c) for c in prompt],
        index=0,
        engine=engine,
        env=env,
        codec=CharCodec(),
        protocol=ZeroTir(max_calls=N, budget_message=budget_message),
        limits=Limits(max_new, output_max),
        request_id="r",
    )


CODE = (("```python", "```python"), ("\nprint(2)\n```", "```"))
ANSWER = ("<answer>2</answer>", "</answer>")


async def test_a_turn_says_which_version_the_trajectory_began_with():
    class Newer(PlayedEngine):
        async def generate(self, *args, **more):
            completion = await super().generate(*args, **more)
            self.version += 1
            return completion

    engine = Newer(*CODE, ANSWER)
    await episode(engine, PlayedEnv("2\n"))
    assert engine.first_versions == [None, 3, 3]


async def test_tool_output_is_never_trained():
    """9 + 13 model tokens, then the block "\\n```output\\n2\\n\\n```\\n\\n\\n" of 20 tokens by the environment, then 18
    by the model."""
    t = await episode(PlayedEngine(*CODE, ANSWER), PlayedEnv("2\n"))
    assert t.text == "```python\nprint(2)\n```" + "\n```output\n2\n\n```\n\n\n" + "<answer>2</answer>"
    assert t.is_model.tolist() == [True] * 22 + [False] * 20 + [True] * 18
    assert t.logprobs[22:42].tolist() == [0.0] * 20 and set(t.versions[22:42].tolist()) == {-1}
    assert t.oldest_version == 3 and t.model_tokens == 40


async def test_the_engine_continues_exactly_the_tokens_it_sampled():
    engine = PlayedEngine(*CODE, ANSWER)
    t = await episode(engine, PlayedEnv("2\n"))
    prompt = [ord("Q")]
    assert engine.contexts[0] == prompt
    assert engine.contexts[2] == prompt + t.token_ids[:42].tolist()


async def test_no_token_is_invented_after_the_last_sampled_one():
    t = await episode(PlayedEngine(("abc", None)), PlayedEnv(), max_new=3)
    assert t.token_ids.tolist() == [97, 98, 99] and t.finish_reason == "length"


async def test_the_budget_counts_tool_output_and_an_inserted_block_may_overshoot():
    """Budget 30: 22 by the model, a block of 20 makes 42; nothing more is sampled and the block stays whole."""
    t = await episode(PlayedEngine(*CODE), PlayedEnv("2\n"), max_new=30)
    assert len(t.token_ids) == 42 and t.finish_reason == "length"


async def test_output_beyond_the_limit_is_replaced_as_a_whole():
    """The block of "x" * 9 is 27 tokens with its fences; a limit of 26 replaces the result, one of 27 does not."""
    assert TOO_LONG in (await episode(PlayedEngine(*CODE, ANSWER), PlayedEnv("x" * 9), output_max=26)).text
    assert "x" * 9 in (await episode(PlayedEngine(*CODE, ANSWER), PlayedEnv("x" * 9), output_max=27)).text


async def test_a_used_up_budget_is_told_only_when_asked_for():
    told = await episode(PlayedEngine(*CODE, ANSWER), PlayedEnv("2\n"), N=1, budget_message=True)
    silent = await episode(PlayedEngine(*CODE, ANSWER), PlayedEnv("2\n"), N=1)
    assert USED_UP in told.text and USED_UP not in silent.text
    assert not told.is_model[22 : 22 + 20 + len(USED_UP)].any()


async def test_an_observation_at_reset_comes_before_the_first_sample():
    engine = PlayedEngine(ANSWER)
    t = await episode(engine, PlayedEnv(first="hi "))
    assert engine.contexts[0] == [ord(c) for c in "Qhi "] and t.is_model.tolist() == [False] * 3 + [True] * 18


@pytest.mark.parametrize(
    ("engine", "env", "reason"),
    [
        (PlayedEngine(*CODE), PlayedEnv(EnvTimeout("late")), "timeout"),
        (PlayedEngine(EngineError("gone")), PlayedEnv(), "engine_error"),
    ],
)
async def test_an_infrastructure_fault_fails_the_trajectory_and_gives_no_reward(engine, env, reason):
    t = await episode(engine, env)
    assert t.failed == reason and t.reward is None


async def test_a_bug_is_raised_not_counted_as_a_fault():
    with pytest.raises(ZeroDivisionError):
        await episode(PlayedEngine(ZeroDivisionError()), PlayedEnv())


@pytest.mark.slow
@given(outputs=st.lists(st.text(max_size=40), min_size=1, max_size=3))
def test_whatever_a_tool_prints_the_mask_and_the_context_agree(outputs):
    """Fences, stop strings and special-token texts in tool output change neither the mask nor the turn structure."""
    import asyncio

    answers = [a for _ in outputs for a in CODE] + [ANSWER]
    t = asyncio.run(episode(PlayedEngine(*answers), PlayedEnv(*outputs), N=len(outputs), max_new=10_000))
    assert t.model_tokens == 22 * len(outputs) + 18
    assert [c.observation for c in t.calls] == outputs
    assert "".join(map(chr, t.token_ids)) == t.text
