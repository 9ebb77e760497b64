"""The keeper of the fast lane: once a tick it measures, sizes, decides and moves responses. Only it acts."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from ...config import Config
from ...types import GroupKey, GroupMeta
from ...waiting.background import background
from ..scheduler import RolloutScheduler
from .lengths import Lengths
from .pace import left_s
from .policy import LanePolicy, UnderWay
from .sizing import Cluster, Size, best_size
from .speeds import Speeds

TICK_S = 2.0
"""Seconds between two looks, some 40 tokens of a response on a full engine: a move may come that much too late."""
MIN_ENDED = 64
"""Responses that must have finished before there are lanes: before, nothing is known about lengths."""
SETTLED = 1.25
"""A lane with more sequences than this multiple of its places is still being emptied: its speed is not that of a
lane."""


class MovingRollout(Protocol):
    """A Rollout whose responses can go on at another engine: simulation/rollout.py, cluster/lanes.py."""

    async def under_way(self) -> Sequence[Any]:
        """Return an `UnderWay` for each response that has begun and not finished."""

    async def move(self, response: Any, engine: str) -> bool:
        """Stop a response of the last look where it is, and continue it on `engine`.

        Return False if it has finished meanwhile, or if the engine is gone.
        """

    def reserve(self, lanes: Collection[str], live: Mapping[str, int]) -> None:
        """Give these engines no new groups, and the others new groups by their number of responses.

        Args:
            lanes: Names of the fast-lane engines. Empty: route as without a fast lane.
            live: Responses under way on each engine.
        """

    @property
    def engines(self) -> Sequence[str]:
        """Names of the engines that are up and stay; perhaps none."""


@asynccontextmanager
async def fast_lane(
    cfg: Config,
    scheduler: RolloutScheduler,
    rollout: MovingRollout,
    *,
    longest: int | None = None,
    slots: int | None = None,
    tick_s: float = TICK_S,
) -> AsyncIterator[None]:
    """Keep a fast lane while the body runs, if pipeline.fast_lane asks for one. The run can do without it.

    Args:
        cfg: The run's configuration.
        scheduler: The run's scheduler.
        rollout: Moves responses between engines.
        longest: Model tokens of a response at most; by default rollout.max_new_tokens.
        slots: Sequences of a full engine; by default vllm.max_num_seqs.
        tick_s: Seconds between two looks.
    """
    if cfg.pipeline.fast_lane == "off":
        yield
        return
    keeper = LaneKeeper(
        cfg,
        scheduler,
        rollout,
        longest=longest or cfg.rollout.max_new_tokens,
        slots=slots or cfg.vllm.max_num_seqs,
        tick_s=tick_s,
    )
    try:
        async with background("fast lane", keeper.run):
            yield
    finally:  # An evaluation after the run has all engines.
        rollout.reserve((), {})


class LaneKeeper:
    """Measures lengths and speeds, decides on the lanes, and moves responses to them."""

    def __init__(
        self,
        cfg: Config,
        scheduler: RolloutScheduler,
        rollout: MovingRollout,
        *,
        longest: int,
        slots: int,
        tick_s: float,
    ) -> None:
        """Create a keeper. Arguments as in `fast_lane`."""
        self.scheduler = scheduler
        self.rollout = rollout
        self.slots = slots
        self.responses = cfg.rollout.batch_size * cfg.rollout.n_samples_per_prompt
        """Responses of a batch."""
        lanes = cfg.pipeline.fast_lane
        self.fixed = lanes if isinstance(lanes, int) else None
        """Number of lanes; None for as many as pay off."""
        self.tick_s = tick_s
        self.lengths = Lengths(longest)
        self.speeds = Speeds(slots)
        self.policy = LanePolicy()
        self.size: Size | None = None
        self._sized_at = -1
        self._longest = float(longest)
        self._before: dict[tuple[GroupKey, int], tuple[str, int]] = {}
        self._measured_at: float | None = None
        scheduler.on_judged = self.finished

    def finished(self, meta: GroupMeta) -> None:
        """Count the lengths of a group that was evaluated, kept or not."""
        self.lengths.finished(meta.model_tokens)

    async def run(self) -> None:
        """Look once a tick, until cancelled."""
        while True:
            await asyncio.sleep(self.tick_s)
            try:
                await self.tick(asyncio.get_running_loop().time())
            except Exception:
                # Lanes that nobody fills would idle. Until a look succeeds again, all engines get groups.
                self.rollout.reserve((), {})
                raise

    async def tick(self, now: float) -> None:
        """Look once.

        Args:
            now: Event loop time in seconds.
        """
        live = await self.rollout.under_way()
        load = Counter({engine: 0 for engine in self.rollout.engines})
        load.update(response.engine for response in live if response.engine in load)
        self.policy.gone(load)
        self._measure(live, load, now)
        known = self.speeds.known and self.lengths.ended >= MIN_ENDED
        if load and self.scheduler.version != self._sized_at and self.scheduler.timing.step_s is not None and known:
            self._sized_at = self.scheduler.version
            self._resize(live, load, self.scheduler.timing.step_s)
        self.rollout.reserve(self.policy.lanes, load)
        if self.size is None or not self.policy.lanes:
            return
        base_s, per_sequence_s = self.speeds.line()
        lane_token_s = base_s + per_sequence_s * self.policy.places
        due_versions = {group.key: self.scheduler.rule.due_version(group) for group in self.scheduler.rolling.values()}
        waiting = [
            (response, left_s(self.scheduler, due_versions[response.group], self.size.period_s, now))
            for response in live
            if response.group in due_versions
        ]
        for response, engine in self.policy.moves(waiting, self._longest, lane_token_s):
            await self.rollout.move(response, engine)

    def _resize(self, live: Sequence[UnderWay], load: Counter[str], step_s: float) -> None:
        """Choose the number of lanes for the coming steps."""
        survival_K = self.lengths.survival(response.tokens for response in live)
        self._longest = self.lengths.reach(survival_K, self.responses)
        most = len(load) // 2 if self.fixed is None else min(max(0, len(load) - 1), self.fixed)
        rolled = self.responses / self.scheduler.depth.metrics().get("acceptance", 1.0)
        before_s = (self.scheduler.timing.work_s or step_s) - step_s
        cluster = Cluster(
            len(load), self.slots, rolled, step_s, self.scheduler.rule.batches_ahead, *self.speeds.line(), before_s
        )
        self.size = best_size(
            cluster, self.lengths.positions_K, survival_K, self._longest, most, least=most if self.fixed else 0
        )
        self.policy.resize(self.size, load)

    def _measure(self, live: Sequence[UnderWay], load: Counter[str], now: float) -> None:
        """Measure speeds from what the responses that stayed on their engine have written since the last look."""
        if self._measured_at is not None:
            seconds: defaultdict[str, float] = defaultdict(float)
            tokens: Counter[str] = Counter()
            for response in live:
                engine, tokens_before = self._before.get((response.group, response.sample), ("", 0))
                if engine == response.engine:
                    seconds[engine] += now - self._measured_at
                    tokens[engine] += response.tokens - tokens_before
            for engine, spent in seconds.items():
                lane = engine in self.policy.lanes
                if not lane or load[engine] <= SETTLED * self.policy.places:
                    self.speeds.record(lane=lane, tokens=tokens[engine], seconds=spent, sharers=load[engine])
        self._before = {(response.group, response.sample): (response.engine, response.tokens) for response in live}
        self._measured_at = now
