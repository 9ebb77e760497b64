"""The environment's own word: the rewards of its replies, added up (or the last, or the highest).

A response whose replies had no reward gets 0: nothing was achieved. An environment that broke gives no reward at all; its trajectory failed.
"""

from __future__ import annotations

from collections.abc import Callable

from ..types import RewardParts, Task, Trajectory
from .context import RewardContext
from .math_outcome import call_facts

REDUCE: dict[str, Callable[[list[float]], float]] = {"sum": sum, "last": lambda rewards: rewards[-1], "max": max}


def environment(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """`reward.env_reduce` over the replies' rewards; correct iff it is above option `correct_above` (0).

    parts: env_done (the environment ended the episode), env_rewards (replies with a reward), and those of `call_facts`.
    """
    given = [call.reward for call in trajectory.calls if call.reward is not None]
    reward = float(REDUCE[context.settings.env_reduce](given)) if given else 0.0
    correct = reward > float(context.options.get("correct_above", 0.0))
    ended = bool(trajectory.calls) and trajectory.calls[-1].done
    readable = float(all(call.outcome == "ok" for call in trajectory.calls))
    facts = {"correct": float(correct), "env_done": float(ended), "env_rewards": float(len(given)), "format_ok": readable}
    return RewardParts(reward, correct, {**call_facts(trajectory), **facts})
