"""Two environments of one configuration: the servers that a run starts for them, and groups of both by one actor."""

from __future__ import annotations

import numpy as np
import pytest

from openrlhf_tir.cluster.env_process import env_urls
from openrlhf_tir.config import Config
from openrlhf_tir.rewards.pool import RewardPools
from openrlhf_tir.rollout.environment_client.client import EnvClient
from openrlhf_tir.rollout.group_judge import GroupJudge
from openrlhf_tir.rollout.group_runner import GroupRunner
from openrlhf_tir.types import Completion, GroupKey, Task
from tests.unit.rollout.test_episode import CharCodec


class Writes:
    """A number while digits are stops; else code, and the answer once its output is there."""

    async def generate(self, token_ids, sampling, *, request_id):
        context = "".join(map(chr, token_ids))
        if "2" in sampling.stop:
            text, stop = "2", "2"
        elif "```output" in context:
            text, stop = "<answer>\\boxed{42}</answer>", "</answer>"
        else:
            text, stop = ("\nprint(6*7)\n```", "```") if context.endswith("```python") else ("```python", "```python")
        ids = np.array([ord(c) for c in text], np.int32)
        return Completion(ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32), text, "stop", stop)


@pytest.mark.slow
async def test_a_run_starts_both_servers_and_each_group_is_answered_and_rewarded_by_its_own(tmp_path):
    sections = {
        "sums": {
            "server": "python_tir",
            "server_options": {"isolation": "none", "languages": False},
            "workers": 1,
            "filter": {"names": []},
        },
        "guess": {
            "file": "env_servers.guess:GuessEnv",
            "protocol": "miniatures.toy.guess:Digits",
            "reward": {"name": "env"},
            "filter": {"names": ["zero_variance"]},
        },
    }
    cfg = Config.model_validate(
        {
            "run_dir": tmp_path,
            "actor": {"num_gpus_per_node": 1},
            "rollout": {"n_samples_per_prompt": 6, "batch_size": 1, "max_new_tokens": 120},
            "envs": sections,
        }
    )
    async with env_urls(cfg) as urls:
        envs, rewards = EnvClient.of(cfg.environments, urls, owner="test"), RewardPools(cfg.environments)
        runner = GroupRunner(cfg, Writes(), CharCodec(), envs, rewards, GroupJudge(cfg, rewards.workers))
        sums, group = await runner.run(GroupKey(0, 0), Task("6*7?", "42", "sums"))
        game, played = await runner.run(GroupKey(0, 1), Task("Guess.", "-", "guess", {"high": 3}))
        await envs.close()
        rewards.workers.close()
    assert sums.failures == game.failures == {}, (sums.why, game.why)
    assert sums.rewards == [1.0] * 6 and all("42" in t.calls[0].observation for t in group.valid)
    assert set(game.rewards) <= {0.0, 1.0} and all(t.calls[-1].done for t in played.valid)
    assert game.stats["call_seconds"] > 0 and game.verdict.keep == (len(set(game.rewards)) == 2)
    assert {call.observation for t in played.valid for call in t.calls} <= {"higher", "lower", "correct"}
