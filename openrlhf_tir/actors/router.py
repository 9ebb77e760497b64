"""Router: which rollout actor samples a group. Controller side; knows names, loads and states, not what an actor is.

    place(prompt, n) -> a member     the prompt's home, if it has one that is not overloaded, else the least loaded,
                                     which becomes it

Sticky: a prompt that comes again (evaluated, or issued again after an environment's fault) finds its prefix in the
cache where it was sampled last. One that a member died or hung under, or failed on, goes to another while there is one.
Overloaded: more than one group above `BALANCE` times the mean load (after Mirrokni et al., Consistent Hashing with
Bounded Loads, 2016). A prompt seen for the first time goes by load alone, so stickiness costs no balance where it could
gain nothing.

    joined     up                   gets groups
    suspect    does not answer      gets none, keeps its own; back when it answers
    full       refused a group      gets none for so long as it said
    draining   is to leave          gets none; `drained` when its last group has ended

It also keeps what members tell of themselves (`told`), since that is old as soon as they get another group.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from ..errors import EngineGone, PipelineError, VersionGone
from .seat import Seat

BALANCE = 1.25
TOLD = {"running", "waiting", "width"}
HOMES = 1 << 16
"""Prompts whose home is remembered; those that came longest ago are forgotten."""
M = TypeVar("M")


class Router(Generic[M]):
    """Belongs to one event loop. Names are unique over the run."""

    def __init__(self) -> None:
        self.seats: dict[str, Seat[M]] = {}
        self._homes: OrderedDict[bytes, str] = OrderedDict()
        self._failed_on: OrderedDict[bytes, set[str]] = OrderedDict()
        """Prompt -> members that it failed on since it was last answered. By name: what takes a dead member's name has
        its place, and its GPU."""
        self._hopeless: BaseException | None = None
        self.reserved: frozenset[str] = frozenset()
        self._changed = asyncio.Event()

    def join(self, name: str, member: M) -> None:
        self.seats[name] = Seat(name, member)
        self._notify()

    def leave(self, name: str) -> bool:
        """The member is gone, with what it ran. False when it had left already."""
        left = self.seats.pop(name, None) is not None
        self._notify()
        return left

    def suspect(self, name: str, suspect: bool) -> None:
        if name in self.seats:
            self.seats[name].suspect = suspect
            self._notify()

    def full(self, name: str, after_s: float) -> None:
        """The member has no room, and says when to try again."""
        if name in self.seats:
            self.seats[name].full_until = asyncio.get_running_loop().time() + after_s

    def reserve(self, names: Collection[str]) -> None:
        """These members get no new groups while others can."""
        self.reserved = frozenset(names)

    def looked(self, live: Mapping[str, int]) -> None:
        """Member -> trajectories under way there, as somebody has just seen. Where responses move, or a group's few
        long ones outlive the others, the groups alone say little. Empty: nobody looks any more."""
        for seat in self.seats.values():
            seat.live = live.get(seat.name)

    def told(self, name: str, figures: Mapping[str, float]) -> None:
        """What the member holds right now, by its own word: `running` and `waiting` sequences, the most that it runs at
        once (`width`), and more. One that does not say these three has told nothing.

        The width is believed as far as it shows: while others wait and fewer run, the KV cache may hold no more."""
        if name in self.seats and figures.keys() >= TOLD:
            self.seats[name].tell(figures)

    def held(self) -> list[dict[str, float]]:
        """The figures of each member that has told them; the trajectories `placed` there since, and those of its groups
        that are `aside`."""
        return [s.figures(s.name in self.reserved) for s in self.seats.values() if s.told]

    def totals(self, longest: str = "") -> dict[str, float]:
        """What all of them hold, by name: the sum, of `longest` the most; and how many `actors` are up."""
        held = self.held()
        figures = {"actors": float(len(self.seats))}
        for name in held[0] if held else ():
            of_each = [h.get(name, 0.0) for h in held]
            figures[name] = max(of_each) if name == longest else sum(of_each)
        return figures

    async def drained(self, name: str) -> None:
        """Give the member nothing more; returns when its last group has ended, or it left."""
        if name in self.seats:
            self.seats[name].draining = True
            self._notify()
        while name in self.seats and self.seats[name].load:
            await self._changed.wait()

    def give_up(self, error: BaseException | None) -> None:
        """No member will come any more: whoever waits for one gets PipelineError. None: one may come again."""
        self._hopeless = error
        self._notify()

    @asynccontextmanager
    async def place(
        self, prompt: str, n: int = 1, fits: Callable[[M], bool] = lambda member: True, aside: bool = False
    ) -> AsyncIterator[M]:
        """A member that `fits`, for a group of n trajectories, counted as its load meanwhile; waits while there is
        none. `aside`: an evaluation's, which is no reason to sample less for training.

        Raises PipelineError when there is none and none will come, VersionGone when there are some and none of them
        fits. A body that raises EngineGone was the member's failure (see `blame`)."""
        key = _key(prompt)
        seat = await self._wait(key, n, fits)
        told = seat.told
        seat.takes(n, aside)
        try:
            yield seat.member
            if seat.name not in self._failed_on.get(key, ()):
                self._failed_on.pop(key, None)
        except EngineGone:
            self.blame(prompt, seat.name)
            raise
        finally:
            seat.gives(n, aside, told)
            self._notify()

    def blame(self, prompt: str, name: str) -> None:
        """The member failed on this prompt: another gets it next time, while there is one."""
        key = _key(prompt)
        self._homes.pop(key, None)
        self._failed_on.setdefault(key, set()).add(name)
        self._failed_on.move_to_end(key)
        if len(self._failed_on) > HOMES:
            self._failed_on.popitem(last=False)

    async def _wait(self, key: bytes, n: int, fits: Callable[[M], bool]) -> Seat[M]:
        loop = asyncio.get_running_loop()
        while True:
            fitting = [s for s in self.seats.values() if fits(s.member)]
            if self.seats and not fitting:
                raise VersionGone("No rollout actor is left that has the weights which are evaluated.")
            able = [s for s in fitting if not s.suspect and not s.draining]
            for avoided in (self.reserved, self._failed_on.get(key)):
                if avoided:
                    able = [s for s in able if s.name not in avoided] or able
            now = loop.time()
            if ready := [s for s in able if s.full_until <= now]:
                return self._choose(ready, key, n)
            if not self.seats and self._hopeless:
                raise PipelineError(
                    f"No rollout actor is left, and a new one did not start: {self._hopeless}"
                ) from self._hopeless
            try:
                async with asyncio.timeout_at(min((s.full_until for s in able), default=None)):
                    await self._changed.wait()
            except TimeoutError:
                continue  # a full one wants to be asked again

    def _choose(self, ready: list[Seat[M]], key: bytes, n: int) -> Seat[M]:
        weights = [s.weight for s in ready]
        mean = sum(weights) / len(ready)
        home = self.seats.get(self._homes.get(key, ""))
        if home not in ready or home.weight > BALANCE * mean + n:
            home = ready[weights.index(min(weights))]
        self._homes[key] = home.name
        self._homes.move_to_end(key)
        if len(self._homes) > HOMES:
            self._homes.popitem(last=False)
        return home

    def _notify(self) -> None:
        """Wake everyone who waits for a member or for one's last group."""
        self._changed.set()
        self._changed = asyncio.Event()


def _key(prompt: str) -> bytes:
    return hashlib.blake2b(prompt.encode("utf-8", "surrogatepass"), digest_size=8).digest()
