"""Reward what the environment's replies give: sum, last or highest.

A response whose replies had no reward gets 0, because nothing was achieved. If the environment broke, its trajectory
has failed and has no reward. The same holds if it ended the episode without any reward. NaN arrives as null, because
JSON has no word for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import EnvironmentCodeError
from ..types import RewardParts, Task, Trajectory
from .context import RewardContext
from .parts import response_parts

REDUCE: dict[str, Callable[[list[float]], float]] = {"sum": sum, "last": lambda rewards: rewards[-1], "max": max}


MOST = 1e30
"""Signals that are NaN or further from 0 are not recorded: one such value would spoil a mean."""


OPTIONS: dict[str, type] = {"correct_above": float, "reduce": str, "signals": object}


def environment(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """Return the replies' rewards as one, which is correct if above the option `correct_above` (0).

    The option `reduce` is sum (the default), last or max.

    The option `signals` is a name or a list of names: for each of them the last number or truth value that a reply had
    as a signal of this name becomes a part (0 if there is none). It is recorded and does not change the reward.

    Returns:
        Its other parts are env_done (1 if the environment ended the episode), env_rewards (number of replies with a
        reward), correct, format_ok (1 if the environment understood every call) and those of `call_facts`.

    Raises:
        EnvironmentCodeError: The environment ended the episode and none of its replies had a reward.
    """
    context.check_options(OPTIONS, "reward.name = 'env'")
    rewards = [call.reward for call in trajectory.calls if call.reward is not None]
    ended = bool(trajectory.calls) and trajectory.calls[-1].done
    if ended and not rewards:
        raise EnvironmentCodeError(
            f"the environment ended the episode and gave no reward: all {len(trajectory.calls)} replies have null (NaN"
            " arrives as null too). Give the last reply a number, 0 where nothing was achieved, or choose a"
            " reward.name that judges the response itself."
        )
    reward = float(REDUCE[context.settings.env_reduce](rewards)) if rewards else 0.0
    correct = reward > float(context.options.get("correct_above", 0.0))
    readable = all(call.outcome == "ok" for call in trajectory.calls)
    parts = {
        **_signals(trajectory, context.options.get("signals", ())),
        **response_parts(trajectory, correct=correct, format_ok=readable),
        "env_done": float(ended),
        "env_rewards": float(len(rewards)),
    }
    return RewardParts(reward, correct, parts)


def _signals(trajectory: Trajectory, names: str | Sequence[str]) -> dict[str, float]:
    """Return the last number that the replies had as a signal of each of these names."""
    signals: dict[str, float] = {}
    for name in [names] if isinstance(names, str) else names:
        values = [
            value
            for call in trajectory.calls
            if isinstance(value := call.signals.get(name), int | float) and abs(value) <= MOST
        ]
        signals[name] = float(values[-1]) if values else 0.0
    return signals
