"""Groups of two environments in one actor: each has its own protocol, limits, reward, group reward and filters."""

from __future__ import annotations

from contextlib import asynccontextmanager

import numpy as np
import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.config.environments import Environment
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.pipeline.method_state import MethodState
from openrlhf_tir.protocol import StepReply
from openrlhf_tir.rewards.pool import RewardPools
from openrlhf_tir.rollout.group_judge import GroupJudge
from openrlhf_tir.rollout.group_runner import GroupRunner
from openrlhf_tir.types import Completion, GroupKey, Task

from .test_episode import CharCodec
from .test_group_judge import Here

SECTIONS = {
    "calc": {"protocol": "zerotir", "output_max_tokens": 100, "filter": {"names": ["accuracy"]}},
    "guess": {
        "protocol": "miniatures.toy.guess:Digits",
        "reward": {"name": "env"},
        "filter": {"names": []},
        "output_max_tokens": 7,
    },
}
KEY = GroupKey(0, 0)


class Writes:
    """Code, or "I say 2", as the stops of the protocol make it."""

    async def generate(self, token_ids, sampling, *, request_id):
        text, stop = ("I say 2", "2") if "2" in sampling.stop else ("\\boxed{7}", "<eos>")
        ids = np.array([ord(c) for c in text], np.int32)
        return Completion(ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32), text, "stop", stop)


class Envs:
    @asynccontextmanager
    async def session(self, env, task, *, seed):
        class Session:
            server = None

            async def reset(self):
                return ""

            async def step(self, action, *, step_id):
                return StepReply(
                    session_id="s", step_id=step_id, observation=f"{env} was told {action}", reward=1.0, done=True
                )

        yield Session()


@pytest.fixture
def runner():
    cfg = Config.model_validate(
        {
            "actor": {"num_gpus_per_node": 1},
            "rollout": {"n_samples_per_prompt": 2, "batch_size": 1},
            "reward": {"format": "boxed"},
            "envs": SECTIONS,
        }
    )
    rewards = RewardPools(cfg.environments)
    yield GroupRunner(cfg, Writes(), CharCodec(), Envs(), rewards, GroupJudge(cfg, Here()), "a0")
    rewards.workers.close()


async def test_each_environment_has_its_own_protocol_reward_filters_and_limits(runner):
    meta, group = await runner.run(KEY, Task("Q", "-", "guess"))
    assert meta.verdict.keep and meta.rewards == [1.0, 1.0] and meta.env == "guess" and meta.stats["calls"] == 1
    assert group.trajectories[0].text == "I say 2 guess\n", "its action, and an observation cut at seven tokens"
    meta, group = await runner.run(KEY, Task("Q", "7", "calc"))
    assert (
        (meta.verdict.keep, meta.verdict.reason) == (False, "accuracy_high")
        and meta.rewards == [1.0, 1.0]
        and meta.stats["calls"] == 0
    )
    assert "call_seconds" not in meta.stats


async def test_a_task_of_no_environment_of_the_run_is_refused(runner):
    with pytest.raises(ConfigError, match=r"'search'\. .*: calc, guess\b"):
        await runner.run(KEY, Task("Q", "7", "search"))


def test_the_pools_of_all_environments_share_their_workers():
    pools = RewardPools(Config(envs=SECTIONS).environments)
    assert len({id(pool.workers) for pool in pools.pools.values()}) == 1 and [*pools.pools] == ["calc", "guess"]
    pools.workers.close()


def test_the_filter_over_many_groups_looks_at_its_own_environment_only():
    state = MethodState(Config(envs={"calc": {"filter": {"names": ["length_balance"]}}, "guess": {}}))
    assert state._balanced == {"calc": True, "guess": False}


def test_an_environment_is_plain_data_that_an_actor_can_be_sent():
    import pickle

    cfg = Config(envs=SECTIONS)
    again = pickle.loads(pickle.dumps(cfg))
    assert (
        again == cfg
        and isinstance(again.environments["guess"], Environment)
        and again.environments["guess"] == cfg.environments["guess"]
    )
