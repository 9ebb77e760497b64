"""Own functions in a worker process: a name and plain data in, an accepted result out. The functions themselves never
cross a process.

Each loads the function by its name where it runs, so that a file of one's own needs no import path, and turns what is
wrong with its result into an error with file and line before it leaves the process, where the traceback is.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import plugins
from ..errors import RewardError
from ..types import Change, Group, RewardParts, Task, Trajectory
from . import GROUP_REWARD, REWARD, accept
from .context import RewardContext


@dataclass(frozen=True)
class _Own:
    name: str

    @property
    def __name__(self) -> str:
        """The name that the workers' messages use."""
        return self.name.rpartition(":")[2]


class OwnReward(_Own):
    def __call__(self, trajectory: Trajectory, task: Task, context: RewardContext) -> tuple[RewardParts, list[Change]]:
        function = plugins.load(REWARD, self.name)
        with accept.named(REWARD, self.name, function, RewardError):
            result = function(trajectory, task, context)
        return accept.reward_parts(result, REWARD, self.name, function), context.changes


class GroupReward(_Own):
    """A registered one works as well: it is then called on the spot."""

    def __call__(self, group: Group, context: RewardContext) -> tuple[list[float], list[Change]]:
        function = plugins.load(GROUP_REWARD, self.name)
        with accept.named(GROUP_REWARD, self.name, function, RewardError):
            result = function(group, context)
        return accept.group_rewards(result, group, GROUP_REWARD, self.name, function), context.changes
