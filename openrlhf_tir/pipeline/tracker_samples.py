"""Tracker samples: now and then one accepted and one dropped response, as text for TensorBoard and wandb."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from ..ports import Rollout
from ..types import Group, GroupMeta
from .drop_notice import FETCH_S, DropNotice
from .scheduler import RolloutScheduler

log = logging.getLogger(__name__)
EVERY_S = 30.0
CHARACTERS = 4000
"""Characters of a prompt's end, and of a response's beginning, that are shown."""
ACCEPTED = "rollout/sample_accepted"
DROPPED = "groups/sample_dropped"


class TrackerSamples:
    """Gives `put` the texts by tag, under the version of the moment; nothing where there is no group that is new."""

    def __init__(
        self,
        scheduler: RolloutScheduler,
        drop_notice: DropNotice,
        rollout: Rollout,
        put: Callable[[int, Mapping[str, str]], None],
    ) -> None:
        self.scheduler = scheduler
        self.drop_notice = drop_notice
        self.rollout = rollout
        self.put = put
        self._shown: set[str] = set()
        """Groups that were shown last, by key."""

    async def run(self) -> None:
        """Look every EVERY_S, until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.look()

    async def look(self) -> None:
        """Show what is there and was not shown yet."""
        found: dict[str, tuple[str, GroupMeta, Any]] = {}
        accepted = [*self.scheduler.buffered, *self.scheduler.current_batch]
        if accepted:
            item = accepted[0].item
            found[ACCEPTED] = ("accepted", item.meta, item.payload)
        if self.drop_notice.latest is not None:
            found[DROPPED] = self.drop_notice.latest
        fresh = {name: sample for name, sample in found.items() if str(sample[1].key) not in self._shown}
        if not fresh:
            return
        try:
            async with asyncio.timeout(FETCH_S):
                groups = await self.rollout.fetch([payload for _, _, payload in fresh.values()])
        except Exception as error:  # the process that held them may be gone; these are for people
            log.info("No sample for the trackers: %s: %s", type(error).__name__, error)
            return
        texts = {
            name: sample_text(reason, group)
            for (name, (reason, _, _)), group in zip(fresh.items(), groups, strict=True)
            if isinstance(group, Group) and group.trajectories
        }
        self._shown = {str(meta.key) for _, meta, _ in found.values()}
        if texts:
            await asyncio.to_thread(self.put, self.scheduler.version, texts)


def sample_text(reason: str, group: Group) -> str:
    """The group's best response, in Markdown. What a model wrote is indented, so that it stays text."""
    best = max(group.trajectories, key=lambda t: float("-inf") if t.reward is None else t.reward)
    rewards = ", ".join("none" if t.reward is None else f"{t.reward:g}" for t in group.trajectories)
    parts = ", ".join(f"{name} {value:g}" for name, value in best.parts.items())
    facts = [f"env {group.task.env}", f"rewards of the group: {rewards}", f"parts: {parts or 'none'}"]
    body = f"{group.task.prompt[-CHARACTERS:]}{best.text[:CHARACTERS]}"
    return (
        f"**{reason}**, prompt {group.key.prompt} of epoch {group.key.epoch}; {'; '.join(facts)}; label"
        f" `{group.task.label[:200]}`\n\n" + "\n".join(f"    {line}" for line in body.splitlines())
    )
