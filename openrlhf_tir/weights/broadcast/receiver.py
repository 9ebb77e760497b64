"""Receiver: one worker's end of broadcasts. It joins the group that it is told of, and tells what became of a push; it
raises nothing.

A worker that raised would leave the answers of those beside it in vLLM's queues. So a fault is an answer too, and there
are two kinds:

    torn       the push ended in the middle: `undo` brings the model to where another push may begin, and until one is
               proved nobody samples from it
    unusable   loading failed, or `undo` did: the engine must be started again
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ...types import BroadcastRendezvous, BroadcastResult
from .group import BroadcastTorn, Group, member
from .stream import Tensors, receive

log = logging.getLogger(__name__)


class Receiver:
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
        """Blocks for as long as the push takes; every wait in it has meeting.deadline_s."""
        try:
            if self._group is None or self._group.meeting != meeting:
                self.leave()
                self._group = member(meeting, rank)
            return receive(self._group, push, load)
        except BroadcastTorn as e:
            return self._undone(str(e), undo)
        except Exception as e:  # the model's loader, which may raise anything
            log.exception("the weights of push %s could not be loaded", push)
            self.leave()
            return BroadcastResult(fault=f"loading failed: {type(e).__name__}: {e}", unusable=True)

    def leave(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None

    def _undone(self, why: str, undo: Callable[[], None]) -> BroadcastResult:
        self.leave()
        try:
            undo()
        except Exception as e:
            log.exception("a torn push could not be undone")
            return BroadcastResult(fault=f"{why}; and then {type(e).__name__}: {e}", unusable=True)
        return BroadcastResult(fault=why)


def agreed(parts: list[BroadcastResult]) -> BroadcastResult:
    """What the workers of one engine say together: the worst of them. Other bytes than the first's are unusable."""
    for kind in (True, False):
        if said := [p for p in parts if p.fault and p.unusable is kind]:
            return said[0]
    if len({p.digest for p in parts}) != 1:
        return BroadcastResult(
            fault=f"its workers received different weights: {', '.join(str(p.digest)[:12] for p in parts)}",
            unusable=True,
        )
    return parts[0]
