"""What the publisher needs of a transport, by which the learner's weights get into the engines.

FileTransport and BroadcastTransport implement it.

    take(version)    make the learner's current weights the next push
    sent(engines)    bring it into each engine and compare digests; returns what each engine's canary sampled
"""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import Protocol, TypeVar

from ..deadlines import Deadline, within
from ..types import BroadcastRendezvous, BroadcastResult, Canary, Completion

T = TypeVar("T")
Results = list[list[Completion] | BaseException]
"""For each engine, in the order of the call: the canary's completions, or the exception that it raised."""


class PushTarget(Protocol):
    """What a push needs of an engine.

    Each call raises EngineGone if the engine's process died; the engine is then no longer part of the push. An engine
    that hangs is discarded at the push's deadline, so that it costs its own work and not the push.
    """

    async def update_weights(
        self, path: Path, version: int, digest: str, canary: Canary | None = None, link: str | None = None
    ) -> list[Completion]:
        """Load a file and return what the canary sampled with it.

        Args:
            path: A full safetensors file, or a delta file if `link` is given.
            version: Number of learner updates behind the weights.
            digest: Digest of the full weights after the push.
            canary: What to sample first; None: nothing.
            link: Chains a delta file to the push before.

        Raises:
            WeightsUnverified: The file is not the announced one, or did not load.
            DeltaRefused: A WeightsUnverified after which the engine has its old weights and can take a full push.
        """

    async def receive_weights(self, meeting: BroadcastRendezvous, first_rank: int, push: str) -> BroadcastResult:
        """Take part in a broadcast, worker i as rank `first_rank` + i; see ports.RolloutEngine."""

    async def use_received(self, version: int, digest: str, canary: Canary | None = None) -> list[Completion]:
        """Compute with the received weights and return what the canary sampled.

        Raises:
            WeightsUnverified: What was received has another digest.
        """

    async def proved(self, version: int) -> None:
        """Release what was sampled with `version`; until then it is withheld."""

    async def discard(self, why: str) -> None:
        """Give up the engine because its weights are unknown. Nothing that it sampled with them is ever returned."""

    async def canary(self, prompt_ids: list[list[int]], max_tokens: int, seed: int) -> list[Completion]:
        """Return one short completion per prompt, sampled with the current weights."""


class Transport(Protocol):
    """Brings pushes to engines. See the module's docstring."""

    @property
    def version(self) -> int:
        """The version of the last push."""

    @property
    def digest(self) -> str | None:
        """The digest of the last push's weights; None before it is known."""

    @property
    def begun(self) -> bool:
        """True once `take` was called."""

    @property
    def delta(self) -> bool:
        """True if every engine got the last push as a delta."""

    @property
    def seconds(self) -> float:
        """Seconds that the learner spent on writing or sending since `begin`."""

    @property
    def nbytes(self) -> int:
        """Bytes that the learner wrote or sent since `begin`."""

    def begin(self) -> None:
        """Reset `seconds` and `nbytes`."""

    async def take(self, version: int, differs_from: str | None, *, full: bool = False) -> None:
        """Make the learner's weights the next push.

        Args:
            version: Number of learner updates behind them.
            differs_from: A digest that the weights must not have. If they do, WeightsUnverified is raised here or in
                `sent`. None: any digest will do.
            full: Do not write a delta.
        """

    async def whole(self) -> None:
        """Make the next `sent` a full push for every engine."""

    async def sent(self, engines: list[PushTarget], canary: Canary) -> Results:
        """Bring the push into each engine. Errors of an engine are returned, not raised."""

    def remove(self) -> None:
        """Remove what the last push left on disk."""


async def in_time(deadline: Deadline, call: Awaitable[T], what: str) -> T:
    """Await a call of an engine with a deadline. `what` names the call in the error.

    Raises:
        DeadlineMissed: An InfraError, so that the engine is refused like one that holds other weights.
    """
    return await within(deadline, call, what)


def name_of(engine: PushTarget) -> str:
    """Return the engine's name for messages."""
    return getattr(engine, "name", "an engine")


def same_weights(version: int, digest: str) -> str:
    """Return the message for weights that had to differ from those of the push before, but do not."""
    return (
        f"Version {version} has the weights of the push before it (digest {digest[:12]}), although its learning rate"
        " and gradient are not zero: the learner did not step, or published too early."
    )
