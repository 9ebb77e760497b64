"""A reward that does not end is called until that is known, not once for every episode."""

from __future__ import annotations

import asyncio

import pytest

from openrlhf_tir.cli.rehearsal.rewards import NotScored, RewardsUntilOneHangs
from openrlhf_tir.config.sections.reward import Reward
from openrlhf_tir.errors import RewardError
from openrlhf_tir.rewards.pool import RewardPool
from openrlhf_tir.types import Task
from tests.unit.rewards.reward_fakes import says

REWARD = """
from pathlib import Path

def score(trajectory, task, context):
    with open(Path(__file__).with_name("calls"), "a") as calls:
        print(trajectory.text, file=calls)
    if trajectory.text == "no":
        {bug}
    return 1.0
"""
TEXTS = ["yes", "yes", "no", "yes", "no", "no", "no", "no", "no", "no"]


def scored(directory, bug):
    """Score the texts two at a time; return the texts of the calls that began, and what became of each."""
    (directory / "mine.py").write_text(REWARD.format(bug=bug))
    cfg = Reward(name=f"{directory}/mine.py:score", workers=2, verify_timeout_s=0.5)

    async def score_all():
        pool = RewardPool(cfg)
        rewards = RewardsUntilOneHangs(pool, cfg.workers)
        calls = (rewards.score(says(text), Task("", "")) for text in TEXTS)
        try:
            return await asyncio.gather(*calls, return_exceptions=True)
        finally:
            await pool.stop()

    results = asyncio.run(score_all())
    return (directory / "calls").read_text().split(), [type(result) for result in results]


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["while True: pass", "10 ** 10 ** 9"], ids=["a loop", "one long operation"])
@pytest.mark.extended
def test_no_call_begins_after_one_that_used_up_its_time(tmp_path, bug):
    calls, results = scored(tmp_path, bug)
    assert calls.count("no") <= 2, "the first, and one that ran beside it"
    assert results.count(NotScored) >= 5 and NotScored not in results[:3]


@pytest.mark.slow
def test_a_reward_that_raises_is_called_for_every_episode(tmp_path):
    calls, results = scored(tmp_path, "task.nothing")
    assert sorted(calls) == sorted(TEXTS) and results.count(RewardError) == TEXTS.count("no")
