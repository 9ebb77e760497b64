"""Weighted sums of rewards, by hand."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from openrlhf_tir.config import Reward
from openrlhf_tir.rewards.pool import RewardPool
from openrlhf_tir.types import ToolCall
from tests.unit.rewards.reward_fakes import says, task


async def test_a_weighted_sum_names_its_parts_and_the_first_decides_what_is_correct():
    """0.5 by the environment, and the form is right: 1.0 * 0.5 + 0.1 * 1.0."""
    t = says(r"<answer>\boxed{7}</answer>")
    t.calls = [ToolCall("a", "o", "ok", reward=0.5)]
    r = await RewardPool(Reward(weights={"env": 1.0, "format": 0.1})).score(t, task("42"))
    assert r.reward == pytest.approx(0.6) and r.correct is True
    assert (r.parts["env"], r.parts["format"], r.parts["env_rewards"], r.parts["format_ok"]) == (0.5, 1.0, 1.0, 1.0)
    wrong = await RewardPool(Reward(weights={"math": 1.0, "format": 0.1})).score(t, task("42"))
    assert wrong.reward == pytest.approx(0.1) and wrong.correct is False


async def test_options_of_a_sum_are_a_table_per_reward():
    t = says("x")
    t.calls = [ToolCall("a", "o", "ok", reward=0.5)]
    pool = RewardPool(Reward(weights={"env": 1.0, "format": 0.1}, options={"env": {"correct_above": 0.9}}))
    assert (await pool.score(t, task("-"))).correct is False
    with pytest.raises(ValidationError, match=r"reward\.options\.correct_above "):
        Reward(weights={"env": 1.0}, options={"correct_above": 0.9})
