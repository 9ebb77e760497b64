"""The third argument of a reward: its settings, the progress of the run, and counters.

Counters are numbers that a run keeps in its checkpoints: `context.counters` for all prompts, `context.prompt_counters`
for the reward's own prompt. A reward reads the values as of its group's dispatch and records changes. When a batch has
been trained, the controller applies the changes of all groups that have ended since, in the order of dispatch. So
without staleness the values that a reward reads do not depend on which group ended first. With staleness the order is
not known in advance, which is why there are only sums, lowest and highest values. An evaluation drops the changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..config import Reward
from ..types import CounterUpdate, RunFacts


@dataclass(frozen=True, slots=True)
class RewardContext:
    """See the module's docstring.

    Attributes:
        settings: The section [reward].
        run: The progress of the run.
        options: Options of this reward.
        changes: Changes of counters that the reward has recorded.
    """

    settings: Reward = field(default_factory=Reward)
    run: RunFacts = field(default_factory=RunFacts)
    options: Mapping[str, Any] = field(default_factory=dict)
    changes: list[CounterUpdate] = field(default_factory=list)

    @classmethod
    def of(cls, settings: Reward, run: RunFacts | None = None) -> RewardContext:
        """Return the context of a reward that is used alone."""
        return cls(settings, run or RunFacts(), settings.options)

    @property
    def update(self) -> int:
        """Number of learner updates at the dispatch of the group."""
        return self.run.update

    @property
    def max_updates(self) -> int:
        """The setting train.max_steps; 0 outside of a training run."""
        return self.run.max_updates

    @property
    def counters(self) -> Mapping[str, float]:
        """The run's counters as of the dispatch of the group."""
        return self.run.counters

    @property
    def prompt_counters(self) -> Mapping[str, float]:
        """The prompt's counters as of the dispatch of the group."""
        return self.run.prompt

    @property
    def format(self) -> str:
        """The setting reward.format."""
        return self.settings.format

    def add(self, name: str, value: float = 1.0, *, prompt: bool = False) -> None:
        """Add `value` to a counter, which begins at 0. With `prompt` it is a counter of this prompt alone."""
        self.changes.append(CounterUpdate("prompt" if prompt else "run", name, "add", float(value)))

    def lowest(self, name: str, value: float, *, prompt: bool = False) -> None:
        """Lower a counter to `value` if it is higher. The first call sets it."""
        self.changes.append(CounterUpdate("prompt" if prompt else "run", name, "lowest", float(value)))

    def highest(self, name: str, value: float, *, prompt: bool = False) -> None:
        """Raise a counter to `value` if it is lower. The first call sets it."""
        self.changes.append(CounterUpdate("prompt" if prompt else "run", name, "highest", float(value)))
