"""The statistics of a group, and what the environment's metrics make of them."""

import numpy as np
import pytest

from openrlhf_tir.pipeline.group_metrics import env_metrics, reward_parts
from openrlhf_tir.rollout.group_meta import CALL_SECONDS, CODE_STATS, describe, group_stats
from openrlhf_tir.types import KEEP, Completion, Group, GroupKey, Segment, Task, ToolCall, Trajectory

UNREADABLE = ToolCall("{", "no JSON", "model_error", {"error_type": "malformed_call"})
PROGRAM = "```python\n1\n```"


def trajectory(index: int, *calls: ToolCall, text: str = "x") -> Trajectory:
    one = np.ones(1, np.int32)
    segment = Segment.of_model(Completion(one, one.astype(np.float32), one, text, "stop"))
    parts = {"correct": 1.0}
    return Trajectory(index, one, [segment], list(calls), "stop", reward=1.0, parts=parts)


def meta(*trajectories: Trajectory, env: str = "e"):
    group = Group(GroupKey(0, 0), Task("Q", "x", env), list(trajectories))
    return describe(group, prompt_tokens=1, verdict=KEEP, failed=None, actor="a0", seconds=1.0)


def test_a_call_that_no_environment_had_takes_no_part_in_the_mean_duration_of_calls():
    """Two executed calls of 3 and 1 s: 2 s, also if one of the two groups has three unreadable calls beside."""
    slow = meta(trajectory(0, ToolCall("a", "", "ok", seconds=3.0), *[UNREADABLE] * 3))
    fast = meta(trajectory(0, ToolCall("b", "", "ok", seconds=1.0)))
    assert slow.stats[CALL_SECONDS] == 3.0
    assert env_metrics("e", [slow, fast], [])["env/e/call_seconds_mean"] == pytest.approx(2.0)
    assert not any(name.startswith("reward/call") for name in reward_parts([slow, fast]))


def test_a_group_whose_calls_could_not_be_read_has_no_duration_of_calls():
    group = meta(trajectory(0, UNREADABLE))
    assert CALL_SECONDS not in group.stats and group.stats["calls"] == 1
    assert "env/e/call_seconds_mean" not in env_metrics("e", [group], [])


def test_a_program_beside_a_call_that_could_not_be_read_did_not_run():
    stats = group_stats([trajectory(0, ToolCall("1", "", "ok"), UNREADABLE, text=2 * PROGRAM)])
    assert [stats[name] for name in CODE_STATS] == [2, 1, 1, 0]
