"""Send broadcasts from learner rank 0. Faults of the group are returned as results, not raised."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from ...errors import InfraError
from ...pushes import BroadcastRendezvous, BroadcastResult, Item
from ..rendezvous import served_store
from .group import BroadcastTorn, Group, member
from .stream import Tensors, send


class Sender:
    """Rank 0 of one group at a time. After a fault, `open` opens another group."""

    def __init__(self) -> None:
        self._group: Group | None = None
        self._sending: str | None = None
        self._ended: tuple[str, str] = ("", "")
        """The last push that `end` was called for, and the reason. `send` may not have begun it yet."""

    def open(self, backend: str, address: str, receivers: int, deadline_s: float) -> BroadcastRendezvous:
        """Open a group; its members connect when the first push begins.

        Args:
            backend: "gloo" or "nccl".
            address: An address of this node that the engines reach.
            receivers: Number of workers that will join.
            deadline_s: Deadline in seconds of each operation.

        Returns:
            What the workers need to join.

        Raises:
            InfraError: This process cannot listen on the address.
        """
        self.close()
        try:
            store = served_store(address, timedelta(seconds=deadline_s))
        except (OSError, RuntimeError) as error:
            raise InfraError(
                f"Learner rank 0 cannot listen on {address} for the engines of a broadcast: {error}."
            ) from error
        meeting = BroadcastRendezvous(backend, address, store.port, receivers, deadline_s)
        self._group = member(meeting, 0, store)
        return meeting

    def send(self, push: str, buckets: Sequence[Sequence[Item]], gathered: Iterable[Tensors]) -> BroadcastResult:
        """Send a push to all members.

        Args:
            push: The identity of the push.
            buckets: Names, dtypes and shapes of the tensors in each bucket.
            gathered: Yields the tensors of each bucket.

        Returns:
            The digest of what was sent, or the fault. Errors of gathering are raised as they are.
        """
        group = self._group
        assert group is not None, "open() comes first"
        try:
            self._sending = push
            if self._ended[0] == push:
                group.end(self._ended[1])
            return send(group, push, buckets, gathered)
        except BroadcastTorn as error:
            return BroadcastResult(fault=str(error))
        finally:
            self._sending = None

    def end(self, push: str, why: str) -> None:
        """End a push for all its members, at once or as soon as it begins. Called from another thread."""
        self._ended = (push, why)
        if self._sending == push and (group := self._group):
            group.end(why)

    def close(self) -> None:
        """Close the group and its store. Idempotent."""
        if self._group is not None:
            self._group.close()
        self._group = None
