"""Print a notice when every group is dropped or fails, with the reasons and three samples.

    nothing was ever accepted     printed when a batch of groups was dropped, or 30 s after the first one
    something was accepted once   printed when two batches in a row were dropped, and for at least 30 s
    it goes on                    said again when twice as many were dropped, two minutes later at the earliest

A group that fails and is issued again counts as well: a run in which every attempt fails must not be silent until the
attempts are used up. A group that a suspended machine interrupted does not.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import SUSPENDED
from ..ports import Rollout
from ..types import Group, GroupMeta, GroupState, Trajectory

log = logging.getLogger(__name__)
LOOK_EVERY_S = 2.0
FIRST_AFTER_S = 30.0
"""Seconds from the first dropped group to the first notice. With LOOK_EVERY_S and FETCH_S it stays below a minute."""
AGAIN_AFTER_S = 120.0
FETCH_S = 10.0
"""Deadline for the texts of the samples. The notice is printed without them if the node that holds them is gone."""
SAMPLES = 3
EXCERPT = 300
"""Characters of a prompt's end and of a response's beginning."""


class DropNotice:
    """Counts groups since the last one that was accepted. `say` gets the lines, and none when a group is accepted."""

    def __init__(self, batch_groups: int, rollout: Rollout, say: Callable[[Sequence[str]], None]) -> None:
        self.batch_groups = batch_groups
        self.rollout = rollout
        self.say = say
        self.accepted_once = False
        self.reasons: Counter[str] = Counter()
        """Reason -> groups since the last accepted one."""
        self.latest: tuple[str, GroupMeta, Any] | None = None
        """(reason, group, payload) of the last group that was dropped or failed and whose texts are known."""
        self._pending = asyncio.Event()
        """Set while no group was accepted since one was dropped: only then there is something to look at."""
        self._since = 0.0
        """When the first of them ended, in the event loop's seconds."""
        self._printed_at: float | None = None
        self._printed_count = 0
        self._latest: dict[str, list[tuple[GroupMeta, Any]]] = {}
        """Reason -> its latest groups, SAMPLES at most."""

    def ended(self, end: GroupState, meta: GroupMeta | None, payload: Any, failed: str | None) -> None:
        """Count a rolled group that moved on to `end`."""
        if end == GroupState.BUFFERED:
            if self._printed_at is not None:
                self.say([])
            self.accepted_once = True
            self.reasons.clear()
            self._latest.clear()
            self._pending.clear()
            self._printed_at = None
            self._printed_count = 0
            return
        if failed == SUSPENDED:
            return
        reason = f"failed: {failed}" if failed or meta is None else meta.verdict.reason
        if not self.reasons:
            self._since = asyncio.get_running_loop().time()
            self._pending.set()
        self.reasons[reason] += 1
        if meta is not None and payload is not None:
            self.latest = reason, meta, payload
            self._latest[reason] = [*self._latest.get(reason, []), (meta, payload)][-SAMPLES:]

    def is_due(self, now: float) -> bool:
        """Return True if the notice must be printed now, in the event loop's seconds."""
        count = self.reasons.total()
        if not count:
            return False
        lasted = now - self._since
        if self._printed_at is not None:
            return count >= 2 * self._printed_count and now - self._printed_at >= AGAIN_AFTER_S
        if not self.accepted_once:
            return count >= self.batch_groups or lasted >= FIRST_AFTER_S
        return count >= 2 * self.batch_groups and lasted >= FIRST_AFTER_S

    async def run(self) -> None:
        """Print whenever it is due, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._pending.wait()
            await asyncio.sleep(LOOK_EVERY_S)
            if self.is_due(loop.time()):
                await self.print_now(loop.time())

    async def print_now(self, now: float) -> None:
        """Print the notice with its samples."""
        self._printed_at = now
        self._printed_count = self.reasons.total()
        counted = ", ".join(f"{reason} {n}" for reason, n in self.reasons.most_common())
        since = "since the run started" if not self.accepted_once else f"for {now - self._since:.0f} s"
        lines = [
            f"WARNING: no group was accepted {since}: the last {self._printed_count} were dropped or failed"
            f" ({counted}). Nothing is trained meanwhile. More samples: openrlhf-tir play RUN --dropped"
        ]
        for i, (reason, meta, trajectory, group) in enumerate(await self._samples(), 1):
            lines += sample_lines(i, reason, meta, trajectory, group)
        if self.reasons:  # a group may have been accepted while the texts were fetched
            self.say(lines)

    async def _samples(self) -> list[tuple[str, GroupMeta, Trajectory, Group]]:
        """One sample of each reason, the commonest first, then more of the same; SAMPLES at most."""
        ordered = [reason for reason, _ in self.reasons.most_common() if reason in self._latest]
        rounds = [(reason, self._latest[reason][-1 - i]) for i in range(SAMPLES) for reason in ordered
                  if i < len(self._latest[reason])]  # fmt: skip
        chosen = rounds[:SAMPLES]
        try:
            async with asyncio.timeout(FETCH_S):
                groups = await self.rollout.fetch([payload for _, (_, payload) in chosen])
        except Exception as error:  # the process that held them may be gone; the finding is what matters
            log.warning("The texts of the dropped groups cannot be shown: %s: %s", type(error).__name__, error)
            return []
        # Several samples of one group differ little, so each is of another group where there are several.
        found = [
            (reason, meta, group.trajectories[0], group)
            for (reason, (meta, _)), group in zip(chosen, groups, strict=True)
            if isinstance(group, Group) and group.trajectories  # a simulation's payloads are not
        ]
        if len(found) == 1:
            reason, meta, _, group = found[0]
            return [(reason, meta, trajectory, group) for trajectory in group.trajectories[:SAMPLES]]
        return found


def sample_lines(number: int, reason: str, meta: GroupMeta, trajectory: Trajectory, group: Group) -> list[str]:
    """A sample as indented lines: verdict, reward, label, end of the prompt, beginning of the response."""
    parts = ", ".join(f"{name} {value:g}" for name, value in list(trajectory.parts.items())[:6])
    reward = "none" if trajectory.reward is None else f"{trajectory.reward:g}"
    facts = f"{reason}; env {group.task.env}; reward {reward}" + (f" ({parts})" if parts else "")
    facts += f"; label {group.task.label[:EXCERPT]!r}"
    if trajectory.failed:
        facts += f"; failed: {trajectory.failed}"
    lines = [
        f"  sample {number}: {facts}",
        f"    prompt ends: {group.task.prompt[-EXCERPT:]!r}",
        f"    response:    {trajectory.text[:EXCERPT]!r}",
    ]
    why = trajectory.why or meta.why.get(meta.failed or "", "")
    return [*lines, f"    why:         {why[:EXCERPT]}"] if why else lines
