"""An environment that answers after the deadline: a fault of the infrastructure, whatever the answer says."""

from __future__ import annotations

import asyncio

from benchmarks.rollout.fault_parts import CALLS, config, runner
from openrlhf_tir.rollout.environment_client.client import EnvLimits
from openrlhf_tir.types import GroupKey, Task

from .scripted_env import Script, client, ok

SAMPLES = 2


async def test_a_late_answer_is_one_fault_without_a_reward_and_nothing_to_the_retry(tmp_path):
    """The first attempt's answers, each with a reward, come when the second attempt has begun."""
    retried = asyncio.Event()

    async def answer_late(request, body):
        await retried.wait()
        return ok(body, reward=1.0, done=True)

    async def answer_at_once(request, body):
        retried.set()
        return ok(body)

    async with (
        Script(*[answer_late] * SAMPLES) as script,
        client(script, step_timeout_s=0.2, grace_s=0.05) as envs,
    ):
        groups = runner(config(tmp_path, n=SAMPLES), envs, 0.0)
        meta, group = await groups.run(GroupKey(0, 1, 0), Task("p", "", "e"))
        assert (meta.failed, meta.failures, meta.rewards) == ("timeout", {"timeout": SAMPLES}, [])
        assert [t.reward for t in group.trajectories] == [None] * SAMPLES
        assert envs.outcomes == {("e", "timeout"): SAMPLES}

        script.steps = [answer_at_once] * SAMPLES
        envs.limits = {"e": EnvLimits(step_timeout_s=600.0)}
        meta, group = await groups.run(GroupKey(0, 1, 1), Task("p", "", "e"))
    assert (meta.failed, meta.failures) == (None, {})
    assert all([call.observation for call in t.calls] == ["fine"] * CALLS for t in group.valid)
    assert all(call.reward is None for t in group.valid for call in t.calls)
    assert envs.outcomes == {("e", "timeout"): SAMPLES, ("e", "ok"): SAMPLES * CALLS}
