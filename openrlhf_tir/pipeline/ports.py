"""What the pipeline needs of the outside, as Protocols. The real ones live in cluster/ and weights/, fakes in tests."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from ..types import Group, GroupKey, GroupMeta, Task
from ..weights.publisher import PublishReport


class Rollout(Protocol):
    """Rollout actors behind a router. A payload is whatever stands for a Group: an object reference, or the Group itself."""

    async def run_group(self, key: GroupKey, task: Task) -> tuple[GroupMeta, Any]:
        """Raises InfraError when the actor died or the group could not be run at all."""

    async def fetch(self, payloads: Sequence[Any]) -> list[Group]:
        """The groups behind the payloads."""

    async def store(self, group: Group) -> Any:
        """A payload for a group that was read from a checkpoint."""

    def where(self, key: GroupKey) -> str:
        """The actor that a rolling group is at, for a person: "on rollout-0"."""

    def engine_stats(self) -> dict[str, float]:
        """Cheap figures for the metrics; may be empty. `depth = auto` looks at running and waiting [sequences] and preemptions [so far]."""


class Publisher(Protocol):
    def changing(self) -> AbstractAsyncContextManager[None]:
        """Held from the learner's step to the end of its push, so that no engine joins in between."""

    async def publish(self, version: int) -> PublishReport:
        """All engines have the learner's weights and it was proved. Raises WeightsUnverified otherwise."""


class Prompts(Protocol):
    """An ordered, resumable stream of prompts."""

    def next(self) -> tuple[int, int] | None:
        """(epoch, prompt), or None when all episodes are through."""

    def task(self, prompt: int) -> Task: ...
    def state(self) -> dict: ...
    def restore(self, state: dict) -> None: ...
