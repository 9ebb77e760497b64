"""Seat: a rollout actor as the router sees it: what was placed there, and what it told of itself, while that holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

NARROWER = 1 / 32
"""The share of its width that a member loses when it tells that some wait and fewer run, and of what it lacks that it
gets back when none wait."""
M = TypeVar("M")


@dataclass(eq=False, slots=True)
class Seat(Generic[M]):
    """A member as the router sees it. `load` counts the trajectories of its groups, those that have ended included."""

    name: str
    member: M
    load: int = 0
    live: int | None = None
    """Those that have not ended, wherever their group is at home, with what was placed since somebody looked; None:
    nobody looks."""

    @property
    def weight(self) -> int:
        """What new groups are kept away by."""
        return self.load if self.live is None else self.live

    suspect: bool = False
    draining: bool = False
    full_until: float = 0.0
    told: Mapping[str, float] = field(default_factory=dict)
    """What the member last told of itself: figures by name."""
    placed: int = 0
    """Trajectories placed since then, but for those aside."""
    aside: int = 0
    """Trajectories of its groups that somebody else's work waits for: an evaluation's."""
    width: float = 0.0
    """Sequences that it runs at once."""
    _held: dict[str, float] = field(default_factory=dict)
    """`figures` as they were asked for last; empty since something changed."""

    def takes(self, n: int, aside: bool) -> None:
        """A group of n is placed there."""
        self.load += n
        self.aside += n * aside
        self.placed += n * (not aside)
        if self.live is not None:
            self.live += n
        self._held = {}

    def gives(self, n: int, aside: bool, told: Mapping[str, float]) -> None:
        """The group has ended; `told`: what the member had said when it came."""
        if self.told is told:  # it was refused or failed: nobody tells that it is gone
            self.placed -= n * (not aside)
        self.load -= n
        self.aside -= n * aside
        self._held = {}

    def tell(self, figures: Mapping[str, float]) -> None:
        most = figures["width"]
        width = self.width if self.told else most
        width += NARROWER * ((0.0 if figures["waiting"] else most) - width)
        self.width = max(figures["running"], width)
        self.told, self.placed, self._held = dict(figures), 0, {}

    def figures(self, reserved: bool) -> dict[str, float]:
        """What was told, as far as it still holds: nothing runs where no group is, and where none is to come there is
        room for what runs."""
        closed = reserved or self.draining or self.suspect
        if self._held.get("open") == (not closed):
            return self._held
        figures = {**self.told, "placed": float(self.placed), "aside": float(self.aside)}
        if not self.load:
            figures |= {"running": 0.0, "waiting": 0.0, "placed": 0.0}
        self._held = figures | {"width": figures["running"] if closed else self.width, "open": float(not closed)}
        return self._held
