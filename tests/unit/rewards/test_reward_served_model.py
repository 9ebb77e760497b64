"""The reward 'model': what a reward model's score becomes, and that its faults become no reward."""

from __future__ import annotations

import pytest

from openrlhf_tir.config import Config, Reward
from openrlhf_tir.errors import ConfigError, RewardModelError
from openrlhf_tir.rewards.context import RewardContext
from openrlhf_tir.rewards.pool import RewardPool
from openrlhf_tir.rewards.served.model import model
from openrlhf_tir.types import ToolCall
from tests.unit.rewards.reward_fakes import says, task

NAMED = {"name": "model", "model_name_or_path": "rm"}


class Scored:
    def __init__(self, value: float | Exception) -> None:
        self.value, self.asked = value, 0

    async def score(self, trajectory):
        self.asked += 1
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


async def test_a_score_is_the_reward_and_above_zero_counts_as_correct():
    for value, correct in ((1.5, True), (-0.5, False)):
        scorer = Scored(value)
        r = await RewardPool(Reward(**NAMED), model=scorer).score(says("x"), task("-"))
        assert (r.reward, r.correct, r.parts["model_score"], scorer.asked) == (value, correct, value, 1)
    r = await RewardPool(Reward(**NAMED, options={"correct_above": 2.0}), model=Scored(1.5)).score(says("x"), task("-"))
    assert not r.correct


async def test_it_is_one_of_a_sum():
    t = says("x")
    t.calls = [ToolCall("a", "o", "ok", reward=0.5)]
    r = await RewardPool(Reward(model_name_or_path="rm", weights={"env": 1.0, "model": 0.1}), model=Scored(2.0)).score(
        t, task("-")
    )
    assert r.reward == pytest.approx(0.7)


async def test_a_dead_reward_model_is_a_fault_and_no_reward():
    with pytest.raises(RewardModelError, match="it died"):
        await RewardPool(Reward(**NAMED), model=Scored(RewardModelError("it died"))).score(says("x"), task("-"))


async def test_it_says_what_it_lacks():
    with pytest.raises(ConfigError, match=r"'model' .*reward\.model_name_or_path"):
        await model(says("x"), task("-"), RewardContext(Reward()))
    with pytest.raises(ConfigError, match=r"'above'\. .*correct_above"):
        await model(says("x"), task("-"), RewardContext(Reward(**NAMED), options={"above": 1}))


async def test_outside_of_a_run_there_is_no_reward_model_and_no_reward():
    with pytest.raises(RewardModelError):
        await model(says("x"), task("-"), RewardContext(Reward(**NAMED)))


@pytest.mark.parametrize(
    ("settings", "fact"),
    [
        ({"name": "model"}, r"'model' .*reward\.model_name_or_path"),
        ({"model_name_or_path": "rm"}, r"reward\.model_name_or_path = 'rm' .*reward\.name"),
        ({"normalize_enable": True}, r"reward\.normalize_enable .*reward\.model_name_or_path"),
    ],
)
def test_a_reward_model_that_is_not_used_or_not_there_is_refused(settings, fact):
    with pytest.raises(ValueError, match=fact):
        Config(reward=settings)
