"""What the publisher needs of a transport, by which the learner's weights get into the engines.

FileTransport, BroadcastTransport and IpcTransport implement it.

    take(version)    make the learner's current weights the next push
    send(engines)    bring it into each engine and compare digests; returns what each engine's canary sampled
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ..ports import RemoteEngine
from ..pushes import Canary
from ..types import Completion

Results = list[list[Completion] | BaseException]
"""For each engine, in the order of the call: the canary's completions, or the exception that it raised."""


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

    @property
    def parts(self) -> Mapping[str, float]:
        """Further figures of what was sent since `begin`, by the name of their metric."""

    def begin(self) -> None:
        """Reset `seconds` and `nbytes`."""

    async def take(self, version: int, differs_from: str | None, *, full: bool = False) -> None:
        """Make the learner's weights the next push.

        Args:
            version: Number of learner updates behind them.
            differs_from: A digest that the weights must not have. If they do, WeightsUnverified is raised here or in
                `send`. None: any digest will do.
            full: Do not write a delta.
        """

    async def require_full_push(self) -> None:
        """Make the next `send` a full push for every engine."""

    async def send(self, engines: list[RemoteEngine], canary: Canary) -> Results:
        """Bring the push into each engine. Errors of an engine are returned, not raised."""

    def remove(self) -> None:
        """Remove what the last push left on disk."""


def same_weights(version: int, digest: str) -> str:
    """Return the message for weights that had to differ from those of the push before, but do not."""
    return (
        f"Version {version} has the weights of the push before it (digest {digest[:12]}), although its learning rate"
        " and gradient are not zero: the learner did not step, or published too early."
    )
