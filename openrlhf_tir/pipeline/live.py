"""Live: what a run does right now, as the console, status.json and the live page show it. Reads only."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping

from ..telemetry.heartbeat import Status
from ..telemetry.progress import Progress
from .diagnosis import in_short
from .observer import Observer
from .scheduler import RolloutScheduler

RATE_WINDOW_S = 60.0
"""Seconds over which sampled tokens are averaged."""
IN_ENV = "in_flight/"
"""Prefix of an actor's figures: calls that an environment is answering."""


class Live:
    """Turns the state of a run into a Status. One per attempt: rates and expectations start anew after a restart."""

    def __init__(
        self, scheduler: RolloutScheduler, observer: Observer, progress: Progress, fill_batches: int = 1
    ) -> None:
        """`fill_batches`: pipeline.fill_batches, batches that are accepted before the first step."""
        self.fill_batches = fill_batches
        self.scheduler = scheduler
        self.observer = observer
        self.progress = progress
        self._began_at: float | None = None
        """When the first group started to roll, in the event loop's seconds."""
        self._tokens: deque[tuple[float, float]] = deque()
        """(time, tokens sampled by all engines until then)."""

    def status(self, activity: Mapping[str, float]) -> Status:
        """The status now. `activity`: the sum of what the rollout actors report, {} where none answered."""
        now = asyncio.get_running_loop().time()
        scheduler = self.scheduler
        progress = self.progress
        if self._began_at is None and scheduler.rolling:
            self._began_at = now
        return Status(
            waits_for=in_short(scheduler, self.observer),
            step=scheduler.version,
            max_steps=self.progress.total_steps,
            needed=scheduler.rule.batch_groups,
            ready=len(scheduler.buffered) + len(scheduler.current_batch),
            rolling=len(scheduler.rolling),
            in_env={
                name.removeprefix(IN_ENV): round(n) for name, n in activity.items() if name.startswith(IN_ENV) and n
            },
            rolled=progress.rolled,
            accepted=progress.accepted,
            dropped=dict(progress.dropped),
            failed=dict(progress.failed),
            tokens_per_s=self._rate(now, activity.get("tokens_generated")),
            first_step_s=self._until_first_step(now),
            eta_s=progress.eta_s,
            cycle_s=progress.cycles.seconds,
        )

    def _rate(self, now: float, tokens: float | None) -> float | None:
        """Tokens per second over the last RATE_WINDOW_S. An engine that starts again counts from 0: the window then
        starts anew."""
        if tokens is None:
            tokens = float(self.progress.sampled_tokens)
        if self._tokens and tokens < self._tokens[-1][1]:
            self._tokens.clear()
        self._tokens.append((now, tokens))
        while len(self._tokens) > 2 and now - self._tokens[0][0] > RATE_WINDOW_S:
            self._tokens.popleft()
        since, before = self._tokens[0]
        until, after = self._tokens[-1]
        return (after - before) / (until - since) if until > since else None

    def _until_first_step(self, now: float) -> float | None:
        """Seconds until the first batch is complete, at the rate at which groups were accepted so far."""
        scheduler = self.scheduler
        accepted = len(scheduler.buffered) + len(scheduler.current_batch)
        wanted = scheduler.rule.batch_groups * self.fill_batches
        if scheduler.version > 0 or self._began_at is None or not accepted or accepted >= wanted or scheduler.stepping:
            return None
        return (now - self._began_at) / accepted * (wanted - accepted)
