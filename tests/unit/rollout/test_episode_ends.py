"""The environment's word: done and truncated end an episode, rewards are recorded, and become the trajectory's."""

from __future__ import annotations

import pytest

from openrlhf_tir.config import Reward
from openrlhf_tir.errors import EnvironmentCodeError
from openrlhf_tir.protocol import StepReply
from openrlhf_tir.rewards.environment import environment
from openrlhf_tir.rewards.pool import RewardPool
from openrlhf_tir.rollout.episode import ENV_DONE, ENV_TRUNCATED, Limits, run_episode
from openrlhf_tir.rollout.protocols.zerotir import USED_UP, ZeroTir
from tests.unit.rewards.reward_fakes import in_run, task

from .test_episode import ANSWER, CODE, CharCodec, PlayedEngine, PlayedEnv, episode


class JudgingEnv(PlayedEnv):
    """`outputs` are dicts of StepReply's fields."""

    async def step(self, action, *, step_id):
        fields = self.outputs.pop(0)
        return StepReply(session_id="s", step_id=step_id, **{"observation": "o", **fields})


async def test_done_ends_the_episode_after_its_observation():
    engine = PlayedEngine(*CODE, ANSWER)
    t = await episode(
        engine, JudgingEnv({"observation": "Correct.", "reward": 1.0, "done": True}), N=1, budget_message=True
    )
    assert t.text == "```python\nprint(2)\n```" + "\n```output\nCorrect.\n```\n\n\n", (
        "the observation is there, and nothing after it"
    )
    assert USED_UP not in t.text and len(engine.answers) == 1, "neither a message nor another sample"
    assert (t.finish_reason, t.stop_reason) == ("stop", ENV_DONE)
    assert (t.calls[0].reward, t.calls[0].done) == (1.0, True)
    assert not t.is_model[-20:].any()


async def test_truncated_cuts_the_episode_like_the_length_limit():
    t = await episode(PlayedEngine(*CODE, ANSWER), JudgingEnv({"truncated": True}))
    assert (t.finish_reason, t.stop_reason) == ("length", ENV_TRUNCATED) and t.calls[0].reward is None


@pytest.mark.parametrize(("reduce", "want"), [("sum", 0.5), ("last", -1.0), ("max", 1.0)])
async def test_the_rewards_of_the_replies_become_the_trajectorys(reduce, want):
    env = JudgingEnv({"reward": 1.0}, {}, {"reward": 0.5}, {"reward": -1.0})
    t = await episode(PlayedEngine(*CODE * 4, ANSWER), env, N=4)
    assert [c.reward for c in t.calls] == [1.0, None, 0.5, -1.0], "no reward is not 0"
    r = environment(t, task("-"), in_run(name="env", options={"reduce": reduce}))
    assert r.reward == want and r.correct is (want > 0) and r.parts["env_rewards"] == 3.0


async def test_what_is_correct_can_be_asked_for():
    t = await episode(PlayedEngine(*CODE, ANSWER), JudgingEnv({"reward": 0.4, "done": True}))
    assert environment(t, task("-"), in_run(name="env", options={"correct_above": 0.5})).correct is False


async def test_signals_that_are_asked_for_are_recorded_beside_the_reward():
    replies = (
        {"signals": {"tries": 1, "seen": True, "x": 10**400}},
        {"reward": 0.5, "done": True, "signals": {"tries": 2, "seen": None, "why": "late"}},
    )
    t = await episode(PlayedEngine(*CODE * 2), JudgingEnv(*replies), N=2)
    asked = environment(t, task("-"), in_run(name="env", options={"signals": ["tries", "seen", "why", "x", "nothing"]}))
    assert asked.reward == 0.5
    assert [asked.parts[name] for name in ("tries", "seen", "why", "x", "nothing")] == [2.0, 1.0, 0.0, 0.0, 0.0], (
        "numbers and truths, the last there was"
    )
    assert environment(t, task("-"), in_run(name="env", options={"signals": "tries"})).parts["tries"] == 2.0
    assert "tries" not in environment(t, task("-"), in_run(name="env")).parts


async def test_a_response_that_earned_nothing_has_reward_0():
    t = await episode(PlayedEngine(ANSWER), JudgingEnv())
    assert environment(t, task("-"), in_run(name="env"))[:2] == (0.0, False)


async def test_an_end_without_a_reward_is_a_fault_of_the_environments_code_and_not_0():
    """What a server of another protocol means by NaN arrives as null."""
    t = await episode(PlayedEngine(*CODE * 2), JudgingEnv({}, {"done": True}), N=2)
    with pytest.raises(EnvironmentCodeError):
        environment(t, task("-"), in_run(name="env"))
    with pytest.raises(EnvironmentCodeError) as raised:  # by way of what a run scores with
        await RewardPool(Reward(name="env")).score(t, task("-"))
    assert raised.value.reason == "environment_code_error"
    earlier = await episode(PlayedEngine(*CODE * 2), JudgingEnv({"reward": 0.5}, {"done": True}), N=2)
    assert environment(earlier, task("-"), in_run(name="env")).reward == 0.5
    cut = await episode(PlayedEngine(*CODE), JudgingEnv({"truncated": True}))
    assert environment(cut, task("-"), in_run(name="env")).reward == 0.0


class Cutting(ZeroTir):
    cuts_at_limit = True


async def test_a_protocol_that_cuts_at_the_limit_loses_what_of_a_block_is_beyond_with_its_mask():
    """Budget 30: 22 tokens by the model, 8 of the block's 20; with one of 22 nothing is left of the block."""
    for budget, ours in ((30, 8), (22, 0)):
        limits = Limits(max_new_tokens=budget)
        played = {
            "engine": PlayedEngine(*CODE),
            "env": PlayedEnv("2\n"),
            "codec": CharCodec(),
            "protocol": Cutting(max_calls=2),
        }
        t = await run_episode([ord("Q")], index=0, limits=limits, request_id="r", **played)
        assert t.is_model.tolist() == [True] * 22 + [False] * ours and t.finish_reason == "length"
        assert t.text == "```python\nprint(2)\n```" + "\n```output\n2\n\n```\n\n\n"[:ours]
