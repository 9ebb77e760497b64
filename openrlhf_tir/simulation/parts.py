"""The other ports of a simulated run: prompts, learner, publisher, and an observer that keeps metrics in memory."""

from __future__ import annotations

import asyncio
import math
from array import array
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import PipelineError
from ..pipeline.observer import Observer
from ..pushes import PublishReport
from ..types import GroupMeta, StepReport, Task, TrainBatch

TASK = Task("simulated", "0", "simulated")
PHASES = ("wait for groups", "wait for gate", "drain", "accumulate", "step", "push")
"""The phases of the training loop whose seconds are recorded at each step."""


class EndlessPrompts:
    """Implements ports.Prompts with a single epoch that never ends."""

    def __init__(self) -> None:
        self.at = 0
        """Index of the next prompt."""

    def next(self) -> tuple[int, int]:
        """See Prompts."""
        self.at += 1
        return 0, self.at - 1

    def in_place_of(self, prompt: int) -> None:
        """See Prompts. There is one environment, so no prompt takes another one's place."""
        return None

    def more(self) -> bool:
        """See Prompts."""
        return True

    def learned(self, ended: object) -> None:
        """Do nothing: the order is fixed."""

    def facts(self) -> dict[str, float]:
        """See Prompts."""
        return {}

    def task(self, prompt: int) -> Task:
        """See Prompts. All prompts have the same task."""
        return TASK

    def state(self) -> dict[str, Any]:
        """See Prompts."""
        return {"at": self.at}

    def restore(self, state: dict[str, Any]) -> None:
        """See Prompts."""
        self.at = state["at"]


class WeightlessLearner:
    """The part of ports.Learner besides `step`, for a learner that has no weights."""

    async def save(self, directory: Path) -> None:
        """Do nothing: there are no weights to write."""

    async def written(self) -> dict[str, tuple[int, str]]:
        """See Learner. No file was written."""
        return {}

    async def load(self, directory: Path) -> int:
        """Refuse to load.

        Raises:
            PipelineError: Always.
        """
        raise PipelineError(
            "A simulated run keeps nothing that it could be resumed from. Start it again: it repeats itself."
        )

    async def publish(self, path: Path) -> str:
        """Return a fixed digest. The time of a push is the publisher's."""
        return "simulated"

    async def publish_changes(self, path: Path, base_version: int) -> None:
        """Write nothing: there are no weights that could have changed."""

    async def score(self, sequences: list[list[int]]) -> list[np.ndarray]:
        """Return log-probs of 0, [T - 1] float32 for each sequence."""
        return [np.zeros(len(ids) - 1, np.float32) for ids in sequences]

    async def export(self, directory: Path) -> None:
        """Do nothing: there are no weights to write."""


class SimulatedLearner(WeightlessLearner):
    """A learner whose steps take a fixed time, however many updates they make.

    A part of a batch that is accumulated early takes its share of that time, by groups, and the step takes the
    remainder. Trained tokens are counted by their staleness, which is that of the update that they enter.
    """

    def __init__(self, seconds: float, minibatches: int = 1, epochs: int = 1, batch_groups: int = 0) -> None:
        """Create a learner.

        Args:
            seconds: Duration of a step.
            minibatches: Updates of a step in each epoch.
            epochs: Epochs over each batch.
            batch_groups: Groups of a whole batch. Needed only if parts are accumulated.
        """
        self.version = 0
        self.seconds = seconds
        self.minibatches = minibatches
        self.epochs = epochs
        self.batch_groups = batch_groups
        self.busy_s = 0.0
        """Virtual seconds of all steps so far."""
        self.staleness: Counter[int] = Counter()
        """Staleness in versions -> number of trained tokens."""
        self._accumulated_s = 0.0
        self._accumulated_tokens = 0

    async def accumulate(self, part: TrainBatch) -> None:
        """See Learner."""
        seconds = self.seconds * len(part.items) / self.batch_groups
        await asyncio.sleep(seconds)
        self._count(part)
        self.busy_s += seconds
        self._accumulated_s += seconds
        self._accumulated_tokens += part.num_tokens

    async def step(self, batch: TrainBatch) -> StepReport:
        """See Learner."""
        remaining_s = max(0.0, self.seconds - self._accumulated_s)
        tokens = self._accumulated_tokens + batch.num_tokens
        await asyncio.sleep(remaining_s)
        self._accumulated_s = 0.0
        self._accumulated_tokens = 0
        self._count(batch)
        self.busy_s += remaining_s
        self.version += self.minibatches * self.epochs
        return StepReport(self.version, {}, remaining_s, tokens)

    def _count(self, batch: TrainBatch) -> None:
        """Count the tokens of a batch by their staleness. A payload maps the version of tokens to their number."""
        for epoch in range(self.epochs):
            for place, item in enumerate(batch.items):
                update = self.version + epoch * self.minibatches + place * self.minibatches // len(batch.items)
                for version, tokens in item.payload.items():
                    self.staleness[update - version] += tokens


class Pausing(Protocol):
    """A rollout whose engines stop for a push, as those of SimulatedRollout do."""

    def pause(self) -> None:
        """Stop all engines."""

    def resume(self, version: int) -> None:
        """Let all engines go on with the weights of `version`."""


class SimulatedPublisher:
    """A publisher that pauses every engine for the duration of a push."""

    def __init__(self, rollout: Pausing, seconds: float) -> None:
        """Create a publisher whose pushes take `seconds`."""
        self.rollout = rollout
        self.seconds = seconds

    @asynccontextmanager
    async def exclusive_learner(self) -> AsyncIterator[None]:
        """See Publisher. Nothing has to be locked."""
        yield

    async def publish(self, version: int, *, must_differ: bool = False) -> PublishReport:
        """See Publisher."""
        self.rollout.pause()
        await asyncio.sleep(self.seconds)
        self.rollout.resume(version)
        return PublishReport(version, self.seconds, "simulated", 0.0)


class _Nowhere:
    """A metrics log, a trace and a progress display that keep and show nothing."""

    def log(self, *args: object) -> None: ...
    def truncate_after(self, *args: object) -> None: ...
    def add(self, *args: object) -> None: ...
    def update(self, *args: object) -> None: ...
    def evaluated(self, *args: object) -> None: ...
    def group(self, *args: object) -> None: ...
    def notice(self, *args: object) -> None: ...


class StepRecorder(Observer):
    """An Observer in virtual seconds that keeps the metrics of every step in memory, about 100 bytes a step."""

    def __init__(self) -> None:
        nowhere = _Nowhere()
        super().__init__(nowhere, nowhere, nowhere)
        self.rows: dict[str, array] = {}
        """Name of a metric -> its value at each step; NaN where a step had none."""
        self.ends: Counter[str] = Counter()
        """Outcome of a group (see `group_finished`) -> number of groups."""
        self.spent: defaultdict[str, float] = defaultdict(float)
        """Name of a phase -> virtual seconds in it so far."""
        self.probe: Callable[[], Mapping[str, float]] = dict
        """Returns more metrics for every step, such as the engines' counters."""

    def phase_ended(self, name: str, version: int, seconds: float) -> None:
        """See Observer."""
        self.spent[name] += seconds

    def group_finished(self, end: str, meta: GroupMeta | None, failed: str | None) -> None:
        """Count the group by its end, with the reason of a failure behind a slash."""
        self.ends[f"{end}/{failed}" if failed else end] += 1

    def group_left(self, end: str, meta: GroupMeta, reason: str) -> None:
        """Count the group by its end and reason."""
        self.ends[f"{end}/{reason}"] += 1

    def step_finished(
        self, report: StepReport, *, batch_groups: int, rolling: int, buffered: int, extra: Mapping[str, float]
    ) -> None:
        """Append a row. A metric that is new has NaN for all earlier steps."""
        row = {
            "time": asyncio.get_running_loop().time(),
            "rolling": rolling,
            "buffered": buffered,
            "trained_tokens": report.trained_tokens,
            "surplus": self.ends["requeued/surplus"],
            "rejected": self.ends["filtered"],
            **{f"{name}_s": self.spent[name] for name in PHASES},
            **extra,
            **self.probe(),
        }
        steps = len(self.rows.get("time", ()))
        for name in {**self.rows, **row}:
            self.rows.setdefault(name, array("d", steps * [math.nan])).append(row.get(name, math.nan))
