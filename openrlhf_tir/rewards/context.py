"""RewardContext: where a reward is. The update number, the run's own counters, and the settings that it was given.

Counters are numbers that a run keeps in its checkpoints: `context.counters` for all prompts, `context.prompt_counters`
for the prompt at hand. A reward reads them as of its group's dispatch and asks for changes. The controller applies the
changes of all groups that ended when the next batch has been trained, in the order of dispatch: without staleness what
a reward reads does not depend on which group ended first. With staleness that order is not known in advance, which is
why there are only sums, lowest and highest values. In an evaluation changes are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..config import Reward
from ..types import CounterUpdate, RunFacts


@dataclass(frozen=True, slots=True)
class RewardContext:
    """`settings`: the [reward] section; `options`: what this reward can be told besides."""

    settings: Reward = field(default_factory=Reward)
    run: RunFacts = field(default_factory=RunFacts)
    options: Mapping[str, Any] = field(default_factory=dict)
    changes: list[CounterUpdate] = field(default_factory=list)

    @classmethod
    def of(cls, settings: Reward, run: RunFacts | None = None) -> RewardContext:
        return cls(settings, run or RunFacts(), settings.options)

    @property
    def update(self) -> int:
        """Learner updates when the group was issued."""
        return self.run.update

    @property
    def max_updates(self) -> int:
        """train.max_steps; 0 outside of a training run."""
        return self.run.max_updates

    @property
    def counters(self) -> Mapping[str, float]:
        return self.run.counters

    @property
    def prompt_counters(self) -> Mapping[str, float]:
        return self.run.prompt

    @property
    def format(self) -> str:
        return self.settings.format

    def add(self, name: str, value: float = 1.0, *, prompt: bool = False) -> None:
        """Ask for `value` to be added to a counter, which begins at 0. `prompt`: to one of this prompt alone."""
        self.changes.append(CounterUpdate("prompt" if prompt else "run", name, "add", float(value)))

    def lowest(self, name: str, value: float, *, prompt: bool = False) -> None:
        """Ask for a counter to be the lowest of itself and `value`."""
        self.changes.append(CounterUpdate("prompt" if prompt else "run", name, "lowest", float(value)))

    def highest(self, name: str, value: float, *, prompt: bool = False) -> None:
        """Ask for a counter to be the highest of itself and `value`."""
        self.changes.append(CounterUpdate("prompt" if prompt else "run", name, "highest", float(value)))
