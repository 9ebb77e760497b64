"""What the publisher needs of a transport, by which the learner's weights get into the engines.

FileTransport, BroadcastTransport and IpcTransport implement it.

    take(version)    make the learner's current weights the next push
    send(engines)    bring it into each engine and compare digests; returns what each engine's canary sampled
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import WeightsUnverified
from ..ports import RemoteEngine
from ..pushes import Canary
from ..types import Completion

Result = list[Completion] | BaseException
"""The canary's completions of an engine, or the exception that it raised."""
Results = list[Result]
"""The results of engines, in the order of the call."""


class Transport:
    """Brings pushes to engines. The defaults are those of a transport that writes nothing and always pushes in full.

    Attributes:
        version: The version of the last push.
        digest: The digest of the last push's weights; None before it is known.
        begun: True once `take` has made a push.
        seconds: Seconds that the learner spent on writing or sending since `begin`.
        nbytes: Bytes that the learner wrote or sent since `begin`.
    """

    def __init__(self) -> None:
        self.version = 0
        self.digest: str | None = None
        self.begun = False
        self.seconds = 0.0
        self.nbytes = 0
        self._must_differ_from: str | None = None
        """The digest that this push must not have."""

    @property
    def delta(self) -> bool:
        """True if every engine got the last push as a delta."""
        return False

    @property
    def parts(self) -> Mapping[str, float]:
        """Further figures of what was sent since `begin`, by the name of their metric."""
        return {}

    def begin(self) -> None:
        """Reset what is counted since `begin`."""
        self.seconds = 0.0
        self.nbytes = 0

    async def take(self, version: int, differs_from: str | None, *, full: bool = False) -> None:
        """Make the learner's weights the next push. By default they are read from the learner when they are sent.

        Args:
            version: Number of learner updates behind them.
            differs_from: A digest that the weights must not have; None: any digest will do.
            full: Do not write a delta.

        Raises:
            WeightsUnverified: They have that digest. A transport that learns it only while it sends raises this in
                `send`.
            InfraError: A disk is full or failed, or a rank of the learner died (LearnerDied).
        """
        self.version = version
        self.begun = True
        self.digest = None
        self._must_differ_from = differs_from

    async def require_full_push(self) -> None:
        """Make the next `send` a full push for every engine.

        Raises:
            WeightsUnverified: The learner has other weights by now.
            InfraError: As in `take`.
        """

    async def send(self, engines: list[RemoteEngine], canary: Canary) -> Results:
        """Bring the push into each engine. What an engine raises is in the results.

        Raises:
            WeightsUnverified: See `take`.
            InfraError: The learner could not write or send: see `take`.
        """
        raise NotImplementedError

    def remove(self) -> None:
        """Remove what the last push left on disk."""

    def _note_digest(self, digest: str) -> None:
        """Note the digest of the push that is being sent.

        Raises:
            WeightsUnverified: The weights had to differ from the last push's, but do not.
        """
        if digest == self._must_differ_from:
            raise WeightsUnverified(same_weights(self.version, digest))
        self._must_differ_from = None
        self.digest = digest


def same_weights(version: int, digest: str) -> str:
    """Return the message for weights that had to differ from those of the push before, but do not."""
    return (
        f"Version {version} has the weights of the push before it (digest {digest[:12]}), although its learning rate"
        " and gradient are not zero: the learner did not step, or published too early."
    )
