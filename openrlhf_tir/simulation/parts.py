"""The other ports of a simulated run: prompts, learner, publisher, and an observer with figures instead of files."""

from __future__ import annotations

import asyncio
import math
from array import array
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import PipelineError
from ..pipeline.observer import Observer
from ..types import GroupMeta, PublishReport, StepReport, Task, TrainBatch

TASK = Task("simulated", "0", "simulated")
PHASES = ("wait for replay", "wait for gate", "drain", "accumulate", "step", "push")
"""The trainer's, whose seconds are told of each step."""


class EndlessPrompts:
    """Prompts of one epoch that never ends."""

    def __init__(self) -> None:
        self.at = 0

    def next(self) -> tuple[int, int]:
        self.at += 1
        return 0, self.at - 1

    def in_place_of(self, prompt: int) -> None:
        return None

    def more(self) -> bool:
        return True

    def learned(self, ended: object) -> None:
        """The order is fixed: nothing is learned."""

    def facts(self) -> dict[str, float]:
        return {}

    def task(self, prompt: int) -> Task:
        return TASK

    def state(self) -> dict[str, Any]:
        return {"at": self.at}

    def restore(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class WeightlessLearner:
    """What a learner does besides `step`, with no weights to write."""

    async def save(self, directory: Path) -> None:
        """Does nothing: there are no weights to write."""

    async def written(self) -> dict[str, tuple[int, str]]:
        return {}

    async def load(self, directory: Path) -> int:
        raise PipelineError(
            "A simulated run keeps nothing that it could be resumed from. Start it again: it repeats itself."
        )

    async def publish(self, path: Path) -> str:
        """No weights: the publisher's time is all there is of a push."""
        return "simulated"

    async def publish_changes(self, path: Path, base_version: int) -> None:
        """No weights, no changes."""

    async def score(self, sequences: list[list[int]]) -> list[np.ndarray]:
        return [np.zeros(len(ids) - 1, np.float32) for ids in sequences]

    async def export(self, directory: Path) -> None:
        """Does nothing: there are no weights to write."""


class SimulatedLearner(WeightlessLearner):
    """A step takes `seconds`, however many updates it makes; a part of it that is accumulated before, its share of them
    by groups, and the step the rest. Counts trained tokens by their staleness, which is that of the update they
    enter."""

    def __init__(self, seconds: float, minibatches: int = 1, epochs: int = 1, batch_groups: int = 0) -> None:
        """`batch_groups`: B, of which a part is a share; asked for only where parts are accumulated."""
        self.version, self.seconds, self.minibatches, self.epochs = 0, seconds, minibatches, epochs
        self.batch_groups = batch_groups
        self.busy_s = 0.0
        self.staleness: Counter[int] = Counter()
        self._begun_s, self._begun_tokens = 0.0, 0

    async def accumulate(self, part: TrainBatch) -> None:
        seconds = self.seconds * len(part.items) / self.batch_groups
        await asyncio.sleep(seconds)
        self._count(part)
        self.busy_s += seconds
        self._begun_s, self._begun_tokens = self._begun_s + seconds, self._begun_tokens + part.num_tokens

    async def step(self, batch: TrainBatch) -> StepReport:
        left, tokens = max(0.0, self.seconds - self._begun_s), self._begun_tokens + batch.num_tokens
        await asyncio.sleep(left)
        self._begun_s, self._begun_tokens = 0.0, 0
        self._count(batch)
        self.busy_s += left
        self.version += self.minibatches * self.epochs
        return StepReport(self.version, {}, left, tokens)

    def _count(self, batch: TrainBatch) -> None:
        for epoch in range(self.epochs):
            for b, item in enumerate(batch.items):
                update = self.version + epoch * self.minibatches + b * self.minibatches // len(batch.items)
                for version, tokens in item.payload.items():
                    self.staleness[update - version] += tokens


class Pausing(Protocol):
    """A rollout whose engines stop for a push, as SimulatedRollout's do."""

    def pause(self) -> None: ...
    def resume(self, version: int) -> None: ...


class SimulatedPublisher:
    """Every engine pauses for the push; running prefixes are computed again by the model."""

    def __init__(self, rollout: Pausing, seconds: float) -> None:
        self.rollout, self.seconds = rollout, seconds

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        yield

    async def publish(self, version: int, *, must_differ: bool = False) -> PublishReport:
        self.rollout.pause()
        await asyncio.sleep(self.seconds)
        self.rollout.resume(version)
        return PublishReport(version, self.seconds, "simulated", 0.0)


class _Nowhere:
    """Metrics, a trace and a progress display that keep and show nothing."""

    def log(self, *args: object) -> None: ...
    def truncate_after(self, *args: object) -> None: ...
    def add(self, *args: object) -> None: ...
    def update(self, *args: object) -> None: ...
    def evaluated(self, *args: object) -> None: ...
    def group(self, *args: object) -> None: ...
    def notice(self, *args: object) -> None: ...


class StepRecorder(Observer):
    """An Observer in virtual seconds. `rows[name]` is one number per step, NaN where a step had none: memory grows by
    some 100 bytes a step."""

    def __init__(self) -> None:
        nowhere = _Nowhere()
        super().__init__(nowhere, nowhere, nowhere)
        self.rows: dict[str, array] = {}
        self.ends: Counter[str] = Counter()
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.probe: Callable[[], Mapping[str, float]] = dict
        """Read at every step, e.g. the engines' counters."""

    @contextmanager
    def phase(self, name: str, version: int) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        outer = self.current_phase
        self.current_phase = name
        self.phase_started_at = loop.time()
        self.on_phase()
        start = loop.time()
        try:
            yield
        finally:
            self.current_phase = outer
            self.spent[name] += loop.time() - start

    def group_finished(self, end: str, meta: GroupMeta | None, failed: str | None) -> None:
        self.ends[f"{end}/{failed}" if failed else end] += 1

    def step_finished(
        self, report: StepReport, *, batch_groups: int, rolling: int, buffered: int, extra: Mapping[str, float]
    ) -> None:
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
