"""A whole episode of BFCL's turns: what a model writes in ARTIST's tags, on the episode loop, to the rewards that
training and evaluation read."""

from __future__ import annotations

import json

import pytest

from env_servers.adapters.bfcl.env import BfclEnv
from openrlhf_tir.config import Reward
from openrlhf_tir.rewards import load
from openrlhf_tir.rewards.context import RewardContext
from openrlhf_tir.rollout.episode import Limits, run_episode
from openrlhf_tir.rollout.protocols.structured import Tool
from openrlhf_tir.types import Task
from tests.step_reply import reply_of
from tests.unit.rollout.test_episode import CharCodec, PlayedEngine

from .stand_in import FUNCTIONS, HereAndNow, install
from .test_bfcl_env import CAT, TASK, TOUCH, WRITE


class Session:
    """A session of the environment without its server."""

    def __init__(self) -> None:
        self.env = BfclEnv(HereAndNow(), FUNCTIONS)

    async def reset(self):
        return await self.env.reset(TASK, 0)

    async def step(self, action, *, step_id):
        return reply_of(await self.env.step(action, 1.0), step_id)


def call(*made):
    listed = json.dumps([{"name": n, "arguments": a} for n, a in made])
    return f"<reasoning>So.</reasoning><tool>{listed}</tool>", "</tool>"


@pytest.mark.parametrize(
    ("generated", "env", "artist"),
    [
        ([call(TOUCH, WRITE), ("Both are there.", "eos"), call(CAT), ("It says one.", "eos")], 1.0, 1.2),
        # b lacks its text: 1 of 2, and 2 of 3 calls
        ([call(TOUCH), ("Done.", "eos"), call(CAT), ("It says one.", "eos")], 0.0, 0.25 + 1 / 3 + 0.2),
        # nothing was called, and one of two variables is as it should be
        ([("I cannot.", "eos"), ("I cannot.", "eos")], 0.0, 0.25),
    ],
)
async def test_an_episode_of_two_turns_is_rewarded_as_it_was_played(monkeypatch, generated, env, artist):
    install(monkeypatch)
    trajectory = await run_episode(
        [0],
        index=0,
        engine=PlayedEngine(*generated),
        env=Session(),
        codec=CharCodec(),
        protocol=Tool(max_calls=9, user=True),
        limits=Limits(4000, 500),
        request_id="r",
    )
    assert (
        "\n# User\nNow read a.\n" in [s.text for s in trajectory.segments if s.source == "env"]
        and trajectory.calls[-1].done
    )
    task = Task("", json.dumps(TASK["label"]))
    rewards = {
        name: load(name)(trajectory, task, RewardContext(Reward(name=name), options=o)).reward
        for name, o in (("env", {}), ("artist", {"functions": True}))
    }
    assert rewards == pytest.approx({"env": env, "artist": artist})
