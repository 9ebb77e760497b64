"""Run user functions in a worker process. Only names, plain data and checked results cross the process boundary.

Each call loads the function by its name in the process in which it runs, so that a user's file needs no import path. A
wrong result becomes an error with file and line there as well, because the traceback does not leave the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from ..config.integrations.reward_signatures import convention_of
from ..errors import ConfigError, RewardError
from ..types import CounterUpdate, Group, RewardParts, Task, Trajectory
from ..user_code import plugins
from ..user_code.failures import UserFunction
from . import GROUP_REWARD, REWARD, accept, call_now, foreign, group_convention
from .checking import symbolic
from .context import RewardContext


@dataclass(frozen=True)
class OwnReward(UserFunction):
    """A user's reward, in whichever convention it is written."""

    text: str | None = None
    """The response without special tokens, which rewards of verl and TRL receive; None: the text of its segments."""

    def __call__(
        self, trajectory: Trajectory, task: Task, context: RewardContext
    ) -> tuple[RewardParts, list[CounterUpdate]]:
        loaded = accept.LoadedFunction.load(REWARD, self.name, RewardError)
        convention = convention_of(loaded.function)
        with loaded.guarded():
            if convention.name == "ours":
                result = call_now(loaded.function, trajectory, task, context)
            else:
                result = foreign.score_one(loaded.function, convention, trajectory, task, context, self.text)
            parts = accept.reward_parts(result)
        return parts, context.changes


@dataclass(frozen=True)
class Prepare:
    """Prepares a worker that starts: it loads the functions that it will run, and what checks of answers need.

    A user's file may import torch or verl, which takes longer than the CPU seconds of one call.
    """

    names: Sequence[str]

    def __call__(self) -> None:
        symbolic.warm()
        for name in self.names:
            with suppress(ConfigError):  # the first call raises it again, and somebody waits for that call
                plugins.load(REWARD, name)


class GroupReward(UserFunction):
    """A group reward by its name. A registered one works as well."""

    def __call__(self, group: Group, context: RewardContext) -> tuple[list[float], list[CounterUpdate]]:
        loaded = accept.LoadedFunction.load(GROUP_REWARD, self.name, RewardError)
        convention = group_convention(loaded.function)
        with loaded.guarded():
            if convention is None:
                result = loaded.function(group, context)
            else:
                result = foreign.score_group(loaded.function, convention, group.valid, group.task, context)
            rewards = accept.group_rewards(result, len(group.valid))
        return rewards, context.changes
