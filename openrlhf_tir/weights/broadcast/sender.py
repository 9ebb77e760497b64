"""Sender: the learner's end of broadcasts. It serves the place to meet, and tells what became of a push; the group's
faults are answers, not errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch.distributed as dist

from ...errors import InfraError
from ...types import BroadcastRendezvous, BroadcastResult
from .group import BroadcastTorn, Group, member, served
from .stream import Item, Tensors, send


class Sender:
    """Rank 0 of one group at a time; after a fault another is opened."""

    def __init__(self) -> None:
        self._meeting: BroadcastRendezvous | None = None
        self._store: dist.TCPStore | None = None
        self._group: Group | None = None
        self._sending: str | None = None
        self._ended: tuple[str, str] = ("", "")
        """The last push that was to be ended, and why; it may not have begun here."""

    def open(self, backend: str, address: str, receivers: int, deadline_s: float) -> BroadcastRendezvous:
        """Where `receivers` workers are to come; this node's `address`. They and this rank meet when the first push
        begins. Raises InfraError."""
        self.close()
        try:
            self._meeting, self._store = served(backend, address, receivers, deadline_s)
        except (OSError, RuntimeError) as e:
            raise InfraError(f"Learner rank 0 cannot listen on {address} for the engines of a broadcast: {e}.") from e
        return self._meeting

    def send(self, push: str, buckets: Sequence[Sequence[Item]], gathered: Iterable[Tensors]) -> BroadcastResult:
        """What became of it. Raises what gathering raises."""
        try:
            assert self._meeting is not None, "open() comes first"
            group = self._group = self._group or member(self._meeting, 0, self._store)
            self._sending = push
            if self._ended[0] == push:
                group.end(self._ended[1])
            return send(group, push, buckets, gathered)
        except BroadcastTorn as e:
            return BroadcastResult(fault=str(e))
        finally:
            self._sending = None

    def end(self, push: str, why: str) -> None:
        """From another thread: whoever takes part in the push is told at once, or when it begins."""
        self._ended = (push, why)
        if self._sending == push and (group := self._group):
            group.end(why)

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
        self._group = self._store = self._meeting = None
