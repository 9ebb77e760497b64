"""Choose the engine that runs a group, and keep count of what each engine has to do. The controller's side.

    place(prompt, samples) -> an engine    the prompt's home, if it has one that is not overloaded; otherwise the least
                                           loaded engine, which becomes its home

A prompt that comes again (in an evaluation, or issued again after an environment's fault) finds its prefix in the cache
of the engine that sampled it last. It goes elsewhere only if that engine failed on it or is overloaded: its load is
more than one group above BALANCE times the mean (after Mirrokni et al., Consistent Hashing with Bounded Loads, 2016).
A new prompt goes by load alone, so affinity costs no balance where it cannot gain anything.

    state of an engine   gets new groups
    available            yes
    silent               no, until it answers heartbeats again; it keeps its groups
    draining             no; `wait_until_drained` returns when its last group has ended

The router knows names, loads and states, and not what an engine is: simulations and tests route other things.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ..errors import EngineGone, PipelineError, VersionGone
from .wakeup import Wakeup

BALANCE = 1.25
MAX_PROMPTS = 1 << 16
"""Prompts whose home is remembered; the least recently used are forgotten."""
REPORTED = {"running", "waiting", "width"}
"""Figures that a report must have; others are passed on."""
WIDTH_GAIN = 1 / 32
"""Share of the distance to its target by which `observed_width` moves with each report."""
EngineT = TypeVar("EngineT")


@dataclass(eq=False, slots=True)
class RoutedEngine(Generic[EngineT]):
    """One engine as the router sees it. All counts are in samples (sequences), not in groups.

    Attributes:
        name: Unique among the engines of the moment; a replacement takes the name of a lost engine.
        engine: The engine itself.
        assigned: Samples of all groups that run here, finished samples of running groups included.
        evaluation: Those of `assigned` that belong to an evaluation, which is no reason to sample less for training.
        since_report: Training samples placed since the last report.
        sampling: Unfinished samples here, as counted by the fast lane (lane/) and with what was placed since; None if
            nobody counts them.
        report: What the engine last reported of itself, figures by name.
        observed_width: Sequences that run at once, as far as reports show: while some wait and fewer run, the KV cache
            holds no more.
        silent: It does not answer heartbeats.
        draining: It is to leave.
    """

    name: str
    engine: EngineT
    assigned: int = 0
    evaluation: int = 0
    since_report: int = 0
    sampling: int | None = None
    report: Mapping[str, float] = field(default_factory=dict)
    observed_width: float = 0.0
    silent: bool = False
    draining: bool = False
    _stats: dict[str, float] = field(default_factory=dict)
    """The last result of `current_stats`; empty after a change."""

    @property
    def load(self) -> int:
        """What new groups are balanced by."""
        return self.assigned if self.sampling is None else self.sampling

    def place(self, samples: int, for_evaluation: bool) -> None:
        """Count a group that begins."""
        self.assigned += samples
        if for_evaluation:
            self.evaluation += samples
        else:
            self.since_report += samples
        if self.sampling is not None:
            self.sampling += samples
        self._stats = {}

    def release(self, samples: int, for_evaluation: bool, report_at_placement: Mapping[str, float]) -> None:
        """Count a group that has ended.

        Args:
            samples: As given to `place`.
            for_evaluation: As given to `place`.
            report_at_placement: The report of the time when the group was placed.
        """
        self.assigned -= samples
        if for_evaluation:
            self.evaluation -= samples
        elif self.report is report_at_placement:
            # No report came since, so none will mention these samples: the group was refused, or failed.
            self.since_report -= samples
        self._stats = {}

    def update(self, report: Mapping[str, float]) -> None:
        """Take a report of what the engine holds now."""
        max_sequences = report["width"]
        width = self.observed_width if self.report else max_sequences
        target = 0.0 if report["waiting"] else max_sequences
        width += WIDTH_GAIN * (target - width)
        self.observed_width = max(report["running"], width)
        self.report = dict(report)
        self.since_report = 0
        self._stats = {}

    def current_stats(self, reserved: bool) -> dict[str, float]:
        """Return the last report, as far as it still holds, with what was placed since.

        An engine without a group runs nothing. One that gets no new groups has room only for what it runs.

        Args:
            reserved: True if the engine gets no new groups because the fast lane uses it.
        """
        closed = reserved or self.draining or self.silent
        if self._stats.get("open") == (not closed):
            return self._stats
        stats = {**self.report, "placed": float(self.since_report), "aside": float(self.evaluation)}
        if not self.assigned:
            stats |= {"running": 0.0, "waiting": 0.0, "placed": 0.0}
        stats |= {"width": stats["running"] if closed else self.observed_width, "open": float(not closed)}
        self._stats = stats
        return stats


class Router(Generic[EngineT]):
    """The engines that groups can go to. Belongs to one event loop."""

    def __init__(self) -> None:
        self.engines: dict[str, RoutedEngine[EngineT]] = {}
        self.reserved: frozenset[str] = frozenset()
        """Engines of the fast lane."""
        self._homes: OrderedDict[bytes, str] = OrderedDict()
        self._failed_on: OrderedDict[bytes, set[str]] = OrderedDict()
        """Prompt -> names of the engines that failed on it since it last succeeded. By name, because the replacement of
        a dead engine has the same GPU."""
        self._launch_error: BaseException | None = None
        self._changed = Wakeup()

    def join(self, name: str, engine: EngineT) -> None:
        """Add an engine."""
        self.engines[name] = RoutedEngine(name, engine)
        self._changed.notify()

    def leave(self, name: str) -> None:
        """Remove an engine and its load. Removing it again does nothing."""
        self.engines.pop(name, None)
        self._changed.notify()

    def set_silent(self, name: str, silent: bool) -> None:
        """Note whether an engine answers heartbeats."""
        if name in self.engines:
            self.engines[name].silent = silent
            self._changed.notify()

    def reserve(self, names: Collection[str]) -> None:
        """Keep new groups away from these engines as long as others can take them."""
        self.reserved = frozenset(names)

    def record_sampling(self, sampling: Mapping[str, int]) -> None:
        """Take the number of unfinished samples on each engine, by its name; an empty mapping: nobody counts them.

        Groups alone say little about the load where responses move between engines, or where a group's few long ones
        outlive the others.
        """
        for routed in self.engines.values():
            routed.sampling = sampling.get(routed.name)

    def record_report(self, name: str, report: Mapping[str, float]) -> None:
        """Take what an engine reports of itself.

        Args:
            name: The engine.
            report: `running` and `waiting` sequences, the most that it runs at once (`width`), and more. A report
                without one of these is ignored.
        """
        if name in self.engines and report.keys() >= REPORTED:
            self.engines[name].update(report)

    def stats(self) -> list[dict[str, float]]:
        """Return the stats of each engine that has reported (see RoutedEngine.current_stats)."""
        return [routed.current_stats(routed.name in self.reserved) for routed in self.engines.values() if routed.report]

    def total_stats(self) -> dict[str, float]:
        """Return the sums of the stats of all engines, and the number of `actors`."""
        of_engines = self.stats()
        total = {"actors": float(len(self.engines))}
        for name in of_engines[0] if of_engines else ():
            total[name] = sum(stats.get(name, 0.0) for stats in of_engines)
        return total

    async def wait_until_drained(self, name: str) -> None:
        """Give an engine no new groups, and return when its last group has ended or the engine has left."""
        if name in self.engines:
            self.engines[name].draining = True
            self._changed.notify()
        await self._changed.until(lambda: name not in self.engines or not self.engines[name].assigned)

    def keep(self, name: str) -> None:
        """Give an engine that drains new groups again."""
        if name in self.engines:
            self.engines[name].draining = False
            self._changed.notify()

    def set_launch_error(self, error: BaseException | None) -> None:
        """Note that no engine will come any more, and why: `place` raises PipelineError if there is none. None: one may
        come again."""
        self._launch_error = error
        self._changed.notify()

    @asynccontextmanager
    async def place(
        self,
        prompt: str,
        samples: int = 1,
        fits: Callable[[EngineT], bool] = lambda engine: True,
        for_evaluation: bool = False,
    ) -> AsyncIterator[EngineT]:
        """Choose an engine for a group and count the group as its load inside the block. Waits while there is none.

        A block that raises EngineGone counts as a failure of the engine on this prompt (see `record_failure`).

        Args:
            prompt: The prompt, for affinity.
            samples: Samples of the group.
            fits: Returns True for engines that may run it.
            for_evaluation: True if an evaluation waits for the group.

        Raises:
            PipelineError: There is no engine, and none will come.
            VersionGone: There are engines, but none of them fits.
        """
        key = _prompt_key(prompt)
        routed = await self._wait_for_engine(key, samples, fits)
        report = routed.report
        routed.place(samples, for_evaluation)
        try:
            yield routed.engine
            if routed.name not in self._failed_on.get(key, ()):
                self._failed_on.pop(key, None)
        except EngineGone:
            self.record_failure(prompt, routed.name)
            raise
        finally:
            routed.release(samples, for_evaluation, report)
            self._changed.notify()

    def record_failure(self, prompt: str, name: str) -> None:
        """Send the prompt to another engine than this one next time, while there is one."""
        key = _prompt_key(prompt)
        self._homes.pop(key, None)
        self._failed_on.setdefault(key, set()).add(name)
        self._failed_on.move_to_end(key)
        if len(self._failed_on) > MAX_PROMPTS:
            self._failed_on.popitem(last=False)

    async def _wait_for_engine(
        self, key: bytes, samples: int, fits: Callable[[EngineT], bool]
    ) -> RoutedEngine[EngineT]:
        await self._changed.until(lambda: bool(self._candidates(key, fits)))
        return self._choose(self._candidates(key, fits), key, samples)

    def _candidates(self, key: bytes, fits: Callable[[EngineT], bool]) -> list[RoutedEngine[EngineT]]:
        """Return the engines that may get a group now; none while it has to wait. Raises as `place` does."""
        if not self.engines and self._launch_error:
            raise PipelineError(
                f"No rollout actor is left, and a new one did not start: {self._launch_error}"
            ) from self._launch_error
        fitting = [routed for routed in self.engines.values() if fits(routed.engine)]
        if self.engines and not fitting:
            raise VersionGone("No rollout actor is left that has the weights which are evaluated.")
        candidates = [routed for routed in fitting if not routed.silent and not routed.draining]
        for avoided in (self.reserved, self._failed_on.get(key, ())):
            candidates = [routed for routed in candidates if routed.name not in avoided] or candidates
        return candidates

    def _choose(self, candidates: list[RoutedEngine[EngineT]], key: bytes, samples: int) -> RoutedEngine[EngineT]:
        loads = [routed.load for routed in candidates]
        mean = sum(loads) / len(candidates)
        home = self.engines.get(self._homes.get(key, ""))
        if home not in candidates or home.load > BALANCE * mean + samples:
            home = candidates[loads.index(min(loads))]
        self._homes[key] = home.name
        self._homes.move_to_end(key)
        if len(self._homes) > MAX_PROMPTS:
            self._homes.popitem(last=False)
        return home


def _prompt_key(prompt: str) -> bytes:
    return hashlib.blake2b(prompt.encode("utf-8", "surrogatepass"), digest_size=8).digest()
