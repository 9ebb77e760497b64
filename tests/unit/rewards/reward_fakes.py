"""Trajectories by hand: alternating texts of model and environment, one token per character."""

from __future__ import annotations

import numpy as np

from openrlhf_tir.config import Reward
from openrlhf_tir.rewards import call_now, load
from openrlhf_tir.rewards.context import RewardContext
from openrlhf_tir.types import Group, GroupKey, RewardParts, Segment, Task, ToolCall, Trajectory


def trajectory(
    *segments: tuple[str, str], finish: str = "stop", calls: tuple[str, ...] = (), index: int = 0
) -> Trajectory:
    """`segments` are ("model" | "env", text); `calls` the outcomes of the executed calls."""
    made = []
    for source, text in segments:
        ids = np.array([ord(c) for c in text], np.int32)
        made.append(Segment(source, ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32), text))
    done = [ToolCall("print(1)", "1\n", outcome) for outcome in calls]
    return Trajectory(index, np.zeros(1, np.int32), made, done, finish_reason=finish)


def says(text: str, **facts) -> Trajectory:
    return trajectory(("model", text), **facts)


def task(label: str) -> Task:
    return Task("", label)


def group(*members: Trajectory) -> Group:
    return Group(GroupKey(0, 0), task("42"), list(members))


def scored(
    correct: float, tokens: int = 1, *, reward: float | None = None, finish: str = "stop", failed: str | None = None
) -> Trajectory:
    t = says("x" * tokens, finish=finish)
    t.failed = failed
    t.reward, t.parts = (correct if reward is None else reward), {"correct": correct}
    return t


def in_run(**settings) -> RewardContext:
    """The context of a reward under these settings, outside of any run."""
    return RewardContext.of(Reward(**settings))


def reward_of(name: str, response: Trajectory, row: Task, context: RewardContext) -> RewardParts:
    """The result of a registered reward, computed here."""
    return call_now(load(name), response, row, context)
