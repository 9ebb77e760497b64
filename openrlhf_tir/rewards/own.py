"""Run user functions in a worker process. Only names, plain data and checked results cross the process boundary.

Each call loads the function by its name in the process in which it runs, so that a user's file needs no import path. A
wrong result becomes an error with file and line there as well, because the traceback does not leave the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ..config.integrations.reward_signatures import convention_of
from ..errors import ConfigError, RewardError
from ..types import CounterUpdate, Group, RewardParts, Task, Trajectory
from ..user_code import plugins
from ..user_code.failures import UserFunction
from . import GROUP_REWARD, REWARD, accept, call_now, foreign, group_convention
from .checking import symbolic
from .context import RewardContext


@contextmanager
def _accepted(place: plugins.Place, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Turn whatever goes wrong in this block into a RewardError with file and line."""
    fault = None
    with accept.named(place, name, function, RewardError):
        try:
            yield
        except foreign.WrongResult as error:
            fault = str(error)
    if fault is not None:
        raise accept.wrong_result(place, name, function, fault, RewardError)


@dataclass(frozen=True)
class OwnReward(UserFunction):
    """A user's reward, in whichever convention it is written."""

    text: str | None = None
    """The response without special tokens, which rewards of verl and TRL receive; None: the text of its segments."""

    def __call__(
        self, trajectory: Trajectory, task: Task, context: RewardContext
    ) -> tuple[RewardParts, list[CounterUpdate]]:
        function = plugins.load(REWARD, self.name)
        convention = convention_of(function)
        with _accepted(REWARD, self.name, function):
            if convention.name == "ours":
                result = call_now(function, trajectory, task, context)
            else:
                result = foreign.score_one(function, convention, trajectory, task, context, self.text)
        return accept.reward_parts(result, REWARD, self.name, function), context.changes


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
        function = plugins.load(GROUP_REWARD, self.name)
        convention = group_convention(function)
        with _accepted(GROUP_REWARD, self.name, function):
            if convention is None:
                result = function(group, context)
            else:
                result = foreign.score_group(function, convention, group.valid, group.task, context)
        return accept.group_rewards(result, group, GROUP_REWARD, self.name, function), context.changes
