"""Receive broadcasts in an engine's worker. It returns the result of a push and never raises.

If one worker raised, the answers of the engine's other workers would stay in vLLM's queues. So faults are returned.
There are two kinds:

    torn       the push ended in the middle. `undo` has prepared the model for another push; nobody samples from it
               until one is proved
    unusable   loading or `undo` failed: the engine has to be started again
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ...pushes import BroadcastRendezvous, BroadcastResult
from .group import BroadcastTorn, Group, member
from .stream import Tensors, receive

log = logging.getLogger(__name__)


class Receiver:
    """The worker's member of the current group."""

    def __init__(self) -> None:
        self._group: Group | None = None

    def receive(
        self,
        meeting: BroadcastRendezvous,
        rank: int,
        push: str,
        load: Callable[[Tensors], None],
        undo: Callable[[], None],
    ) -> BroadcastResult:
        """Take part in a push. Blocks until it is over; every wait in it has the deadline meeting.deadline_s.

        Args:
            meeting: The group; if it is not the current one, it is joined.
            rank: This worker's rank in it.
            push: The identity of the push.
            load: Loads the tensors of a bucket into the model.
            undo: Prepares the model for another push if this one was torn.

        Returns:
            The digest of what was received, or the fault.
        """
        try:
            if self._group is None or self._group.meeting != meeting:
                self.leave()
                self._group = member(meeting, rank)
            return receive(self._group, push, load)
        except BroadcastTorn as error:
            return self._undo(str(error), undo)
        except Exception as error:  # the model's loader may raise anything
            log.exception("The weights of push %s could not be loaded", push)
            self.leave()
            return BroadcastResult(fault=f"loading failed: {type(error).__name__}: {error}", unusable=True)

    def leave(self) -> None:
        """Leave the group. Idempotent."""
        if self._group is not None:
            self._group.close()
            self._group = None

    def _undo(self, reason: str, undo: Callable[[], None]) -> BroadcastResult:
        """Leave the group and undo a torn push; return the result with the fault."""
        self.leave()
        try:
            undo()
        except Exception as error:
            log.exception("A torn push could not be undone")
            return BroadcastResult(fault=f"{reason}; and then {type(error).__name__}: {error}", unusable=True)
        return BroadcastResult(fault=reason)


def agreed(parts: list[BroadcastResult]) -> BroadcastResult:
    """Combine the results of one engine's workers.

    The worst one is returned: an unusable one, then a torn one. If the workers received different bytes, the engine is
    unusable.
    """
    for unusable in (True, False):
        if faulty := [p for p in parts if p.fault and p.unusable is unusable]:
            return faulty[0]
    if len({p.digest for p in parts}) != 1:
        return BroadcastResult(
            fault=f"its workers received different weights: {', '.join(str(p.digest)[:12] for p in parts)}",
            unusable=True,
        )
    return parts[0]
