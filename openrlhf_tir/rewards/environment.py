"""What the environment's replies give: sum, last or highest.

A response whose replies had no reward gets 0: nothing was achieved. An environment that broke gives no reward at all;
its trajectory failed. So did one that ended the episode and never said what it was worth: NaN, which JSON has no word
for, arrives as null."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import EnvironmentCodeError, unknown
from ..types import RewardParts, Task, Trajectory
from .context import RewardContext
from .math_outcome import call_facts

REDUCE: dict[str, Callable[[list[float]], float]] = {"sum": sum, "last": lambda rewards: rewards[-1], "max": max}


MOST = 1e30
"""What is further from 0, or NaN, is no measurement: one such value would be all that is left of a mean."""


OPTIONS = ("correct_above", "signals")


def environment(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """`reward.env_reduce` over the replies' rewards; correct iff it is above option `correct_above` (0).

    parts: env_done (the environment ended the episode), env_rewards (replies with a reward), and those of `call_facts`;
    besides, for each name in option `signals` (one, or several in a list), the last number or truth that the replies
    had as a signal of that name, 0 where none had: recorded, and no part of the reward. Raises EnvironmentCodeError
    where the environment ended the episode and none of its replies had a reward."""
    if strange := set(context.options) - set(OPTIONS):
        raise unknown("reward.options key", min(strange), OPTIONS, "These are the options of reward.name = 'env'.")
    given = [call.reward for call in trajectory.calls if call.reward is not None]
    ended = bool(trajectory.calls) and trajectory.calls[-1].done
    if ended and not given:
        raise EnvironmentCodeError(
            f"the environment ended the episode and gave no reward: all {len(trajectory.calls)} replies have null (NaN"
            " arrives as null too). Give the last reply a number, 0 where nothing was achieved, or choose a"
            " reward.name that judges the response itself."
        )
    reward = float(REDUCE[context.settings.env_reduce](given)) if given else 0.0
    correct = reward > float(context.options.get("correct_above", 0.0))
    readable = float(all(call.outcome == "ok" for call in trajectory.calls))
    facts = {
        "correct": float(correct),
        "env_done": float(ended),
        "env_rewards": float(len(given)),
        "format_ok": readable,
    }
    return RewardParts(
        reward, correct, {**_told(trajectory, context.options.get("signals", ())), **call_facts(trajectory), **facts}
    )


def _told(trajectory: Trajectory, names: str | Sequence[str]) -> dict[str, float]:
    """What the replies told under these names; a text is no number."""
    told: dict[str, float] = {}
    for name in [names] if isinstance(names, str) else names:
        found = [
            value
            for call in trajectory.calls
            if isinstance(value := call.signals.get(name), int | float) and abs(value) <= MOST
        ]
        told[name] = float(found[-1]) if found else 0.0
    return told
