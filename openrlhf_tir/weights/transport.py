"""Transport: how the learner's weights get into engines. What the publisher needs of one; FileTransport and
BroadcastTransport are there.

take(version)    the learner's weights are the next push from now on
sent(engines)    into each of them, proved by digest; what its canary sampled first, or what it raised
"""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import Protocol, TypeVar

from ..deadlines import Deadline, within
from ..types import BroadcastRendezvous, BroadcastResult, Canary, Completion

T = TypeVar("T")
Results = list[list[Completion] | BaseException]
"""One entry for each engine, in the order they were given: its canaries, or what it raised."""


class PushTarget(Protocol):
    """What a push needs of an engine. Each call raises EngineGone when its process died, which takes the engine out of
    the push. One that hangs is discarded at the push's deadline: it costs its own work, not the push."""

    async def update_weights(
        self, path: Path, version: int, digest: str, canary: Canary | None = None, link: str | None = None
    ) -> list[Completion]:
        """The canary's completions. With a `link` the file is a delta. Raises WeightsUnverified when the file is not
        the announced one or did not load; of it DeltaRefused when the engine is as it was and takes a full push."""

    async def receive_weights(self, meeting: BroadcastRendezvous, first_rank: int, push: str) -> BroadcastResult:
        """Take part in a broadcast, worker i as rank `first_rank` + i; see RolloutEngine."""

    async def use_received(self, version: int, digest: str, canary: Canary | None = None) -> list[Completion]:
        """The canary's completions. Raises WeightsUnverified when what was received has another digest."""

    async def proved(self, version: int) -> None:
        """Says that what was sampled by `version` may be used."""

    async def discard(self, why: str) -> None:
        """This engine holds unknown weights: nothing sampled by them is ever seen."""

    async def canary(self, prompt_ids: list[list[int]], max_tokens: int, seed: int) -> list[Completion]: ...


class Transport(Protocol):
    @property
    def version(self) -> int:
        """The version of the last push."""

    @property
    def digest(self) -> str | None:
        """The digest of the last push's weights; None before it is known."""

    @property
    def begun(self) -> bool:
        """Whether anything was pushed at all."""

    @property
    def delta(self) -> bool:
        """Whether it was what changed only, for every engine."""

    @property
    def seconds(self) -> float:
        """How long the learner took for it, since `begin`."""

    @property
    def nbytes(self) -> int:
        """What it wrote or sent, since `begin`."""

    def begin(self) -> None: ...

    async def take(self, version: int, differs_from: str | None, *, full: bool = False) -> None:
        """Take the learner's weights as the next push.

        Args:
            version: Number of learner updates behind them.
            differs_from: A digest that the weights may not have, which raises WeightsUnverified here or in `sent`.
            full: Do not write a delta.
        """

    async def whole(self) -> None:
        """The next `sent` is in full, whoever it is to."""

    async def sent(self, engines: list[PushTarget], canary: Canary) -> Results: ...

    def remove(self) -> None: ...


async def in_time(deadline: Deadline, call: Awaitable[T], what: str) -> T:
    """Raises DeadlineMissed, an InfraError: the engine is refused like one that holds other weights."""
    return await within(deadline, call, what)


def name_of(engine: PushTarget) -> str:
    return getattr(engine, "name", "an engine")


def same_weights(version: int, digest: str) -> str:
    """Weights that had to differ from those of the push before do not."""
    return (
        f"Version {version} has the weights of the push before it (digest {digest[:12]}), although its learning rate"
        " and gradient are not zero: the learner did not step, or published too early."
    )
