"""What the loop reports: its phases become spans of the timeline, its groups, pushes and steps rows of metrics.

Between two steps, in any order:

    phase             a span, and seconds of the next row
    group_finished    one rolled group: a count by its outcome, and its figures for the means of the next row
    group_left        one accepted group that ends untrained: a count
    push_finished     one weight push: its figures for the next row

Then, at each step:

    step_finished     writes one row and begins to count anew

Evaluations stand apart: `evaluating` is a span, `evaluated` writes the row of the version that was measured.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from ..pushes import PublishReport
from ..types import GroupMeta, StepReport
from .bias_meter import SelectionMeter
from .group_metrics import env_metrics, rollout_metrics

log = logging.getLogger(__name__)
MAX_LOGGED_ERRORS = 100
"""Different error messages of trajectories that are logged, over a run."""
TRACKS = {
    "wait for GPUs": "learner",
    "accumulate": "learner",
    "step": "learner",
    "push": "weights",
    "drain": "weights",
    "checkpoint": "ckpt",
}
"""Phase -> track of the timeline. Other phases have no span."""
METRICS = {
    "wait for groups": "replay_wait_s",
    "wait for gate": "gate_wait_s",
    "drain": "drain_s",
    "wait for GPUs": "turn_s",
    "accumulate": "accumulate_s",
    "step": "step_s",
    "push": "push_s",
    "checkpoint": "checkpoint_s",
    "wait for evaluation": "evaluate_s",
}
"""Phase -> metric of its seconds."""
ENGINE_SECONDS = ("engine_busy_s", "engine_prefill_s", "engine_env_wait_s", "engine_idle_s", "engine_paused_s")
"""Figures of the engines that grow from their start on. A row has what they grew by since the last one."""


class Rows(Protocol):
    """A place for rows of metrics: telemetry/metrics.py."""

    def log(self, step: int, values: Mapping[str, float], /) -> None: ...
    def truncate_after(self, step: int, /, evaluated: bool = True) -> object: ...


class Spans(Protocol):
    """A place for spans: telemetry/timeline.py."""

    def add(self, track: str, name: str, start: float, end: float, /) -> None: ...


class Display(Protocol):
    """Shows the run to a person: telemetry/progress.py."""

    def update(self, step: int, row: Mapping[str, float], /) -> None: ...
    def evaluated(self, step: int, figures: Mapping[str, float], /) -> None: ...
    def group(self, end: str, meta: GroupMeta | None, failed: str | None, /) -> None: ...
    def notice(self, lines: Sequence[str], /) -> None:
        """Show lines that a person should read now. An empty sequence ends the last notice."""


@dataclass(slots=True)
class _SinceLastStep:
    """What is counted for the next row.

    Attributes:
        seconds: Seconds of the phases, by metric.
        counts: Groups and trajectories by metric, as `drops/zero_variance` or `failed/timeout`.
        groups: Groups that were evaluated, kept or filtered.
        push: Figures of the last weight push; empty without one (pipeline.push_every).
    """

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    counts: Counter[str] = field(default_factory=Counter)
    groups: list[GroupMeta] = field(default_factory=list)
    push: dict[str, float] = field(default_factory=dict)


class Observer:
    """Collects figures between two steps and writes them at each step.

    The means of a row are over the groups that *finished* since the last step, trained or not, and at least a batch of
    groups: see `_groups_for_means`.
    """

    def __init__(
        self,
        metrics: Rows,
        trace: Spans,
        progress: Display,
        envs: Sequence[str] = (),
        without_calls: Collection[str] = (),
    ) -> None:
        """Create an observer.

        Args:
            metrics: Receives the rows.
            trace: Receives the spans.
            progress: Shows the run.
            envs: The environments of the run. If there are several, each has its own metrics `env/NAME/...`.
            without_calls: Environments in which a response makes no call; see `rollout_metrics`.
        """
        self.metrics = metrics
        self.trace = trace
        self.progress = progress
        self.envs = tuple(envs) if len(envs) > 1 else ()
        """The environments that have metrics of their own; empty if there is only one."""
        self.without_calls = frozenset(without_calls)
        self.current_phase = "start"
        self.phase_started_at = _loop_time()
        """When the current phase began, in seconds of the event loop; None if the observer was made outside of one."""
        self.on_phase: Callable[[], None] = lambda: None
        """Called at the beginning of each phase and evaluation. The watchdog sets it: the run makes progress."""
        self.selection = SelectionMeter(self.envs)
        self._last_step_at = time.monotonic()
        self._engine_seconds: dict[str, float] = {}
        """ENGINE_SECONDS at the last row."""
        self._since_step = _SinceLastStep()
        self._earlier_groups: list[GroupMeta] = []
        """The latest groups of the last row, a batch of them at most."""
        self._logged_errors: set[tuple[str, str]] = set()
        """(code of the fault, message) of trajectories' errors that the log has."""

    @property
    def phase_s(self) -> float:
        """Seconds for which the current phase lasts."""
        if self.phase_started_at is None:
            return 0.0
        return asyncio.get_running_loop().time() - self.phase_started_at

    @contextmanager
    def phase(self, name: str, version: int) -> Iterator[None]:
        """Mark a phase of the trainer: a span of the timeline, seconds of the next row, and the watchdog's message.

        Phases nest. After an inner one, the outer one goes on from where it began.

        Args:
            name: A key of METRICS.
            version: The learner's version, for the name of the span.
        """
        outer = (self.current_phase, self.phase_started_at)
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        self.current_phase = name
        self.phase_started_at = started_at
        self.on_phase()
        try:
            yield
        finally:
            self.current_phase, self.phase_started_at = outer
            self.phase_ended(name, version, loop.time() - started_at)

    def phase_ended(self, name: str, version: int, seconds: float) -> None:
        """Count the seconds of a phase, and add its span. Arguments as in `phase`."""
        self._since_step.seconds[METRICS[name]] += seconds
        if name in TRACKS:
            # The timeline joins the spans of several processes, so they are in seconds since the epoch.
            end = time.time()
            self.trace.add(TRACKS[name], f"{name} {version}", end - seconds, end)

    @contextmanager
    def evaluating(self, version: int) -> Iterator[None]:
        """Mark an evaluation, which is a span of the timeline and no phase: the trainer goes on meanwhile."""
        self.on_phase()
        start = time.time()
        try:
            yield
        finally:
            self.trace.add("eval", f"evaluate {version}", start, time.time())

    def evaluated(self, version: int, figures: Mapping[str, float]) -> None:
        """Write the figures of an evaluation, or that it failed, as a row of the version that it measured."""
        self.metrics.log(version, figures)
        self.progress.evaluated(version, figures)

    def group_finished(self, end: str, meta: GroupMeta | None, failed: str | None) -> None:
        """Count a rolled group.

        Args:
            end: The state that it moved to: "buffered" or "filtered"; "requeued" or "failed" if the attempt failed.
            meta: Its metadata; None if it failed before there was any.
            failed: The reason if the attempt failed; None if it did not.
        """
        self.selection.ended(end, meta)
        self.progress.group(end, meta, failed)
        counts = self._since_step.counts
        outcome = _outcome(end, meta, failed)
        if outcome != "kept":  # the selection meter counts the kept groups
            counts[outcome] += 1
        if meta is None:
            return
        if meta.env in self.envs:
            counts[f"env/{meta.env}/{outcome}"] += 1
            counts[f"env/{meta.env}/trajectories_failed"] += sum(meta.failures.values())
        for reason, trajectories in meta.failures.items():
            counts[f"trajectories_failed/{reason}"] += trajectories
        self._log_new_errors(meta)
        if end == "buffered":
            for reason in meta.masked:
                if reason:
                    counts[f"masked/{reason}"] += 1
        if failed is None:
            self._since_step.groups.append(meta)

    def group_left(self, end: str, meta: GroupMeta, reason: str) -> None:
        """Count an accepted group that ends untrained: as surplus, or because its step changed nothing."""
        self._since_step.counts[f"{end}/{reason}"] += 1
        self.selection.left(end, meta)

    def _log_new_errors(self, meta: GroupMeta) -> None:
        """Log each different error message once: thousands of trajectories may fail for the same reason."""
        for reason, message in meta.why.items():
            if len(self._logged_errors) >= MAX_LOGGED_ERRORS:
                return
            if (reason, message) not in self._logged_errors:
                self._logged_errors.add((reason, message))
                log.warning("a trajectory of group %s failed (%s): %s", meta.key, reason, message)

    def push_finished(self, report: PublishReport) -> None:
        """Keep the figures of a weight push for the next row."""
        self._since_step.push = {
            "canary_max_diff": report.canary_max_diff,
            "canary_level": report.canary_level,
            "canary_excess": round(report.canary_excess, 4),
            "canary_repeats": float(report.canary_repeats),
            "pushes_repeated": float(report.pushes_repeated),
            "push_write_s": round(report.write_s, 4),
            "push_mib": round(report.nbytes / 2**20, 3),
            "push_delta": float(report.delta),
            **{name: round(value, 4) for name, value in report.parts.items()},
        }

    def step_finished(
        self, report: StepReport, *, batch_groups: int, rolling: int, buffered: int, extra: Mapping[str, float]
    ) -> None:
        """Write the row of a step, and begin to count for the next one.

        Args:
            report: The learner's report of the step.
            batch_groups: Groups of a batch. Means are over at least this many groups.
            rolling: Groups on engines.
            buffered: Accepted groups that no batch has taken yet.
            extra: More metrics of the row, of which ENGINE_SECONDS are those since the engines started.
        """
        now = time.monotonic()
        wall_s = now - self._last_step_at
        self._last_step_at = now
        finished = self._since_step
        groups = self._groups_for_means(batch_groups)
        # Of two metrics with one name the later one counts.
        row = rollout_metrics(groups, self.without_calls)
        for env in self.envs:
            row |= env_metrics(env, groups, self.without_calls)
        row |= self.selection.row()
        row |= report.metrics
        row |= {name: float(count) for name, count in finished.counts.items()}
        row |= {name: round(seconds, 4) for name, seconds in finished.seconds.items()}
        row |= extra
        row |= self._growth_of_engine_seconds(extra)
        row |= {"rolling": float(rolling), "buffered": float(buffered)}
        row |= finished.push
        row |= {
            "trained_tokens": float(report.trained_tokens),
            "tokens_per_s": report.trained_tokens / wall_s,
            "wall_s": wall_s,
        }
        self.metrics.log(report.version, row)
        self.progress.update(report.version, row)
        self._since_step = _SinceLastStep()

    def _growth_of_engine_seconds(self, stats: Mapping[str, float]) -> dict[str, float]:
        """Return what ENGINE_SECONDS grew by since the last row."""
        before = self._engine_seconds
        self._engine_seconds = {name: stats.get(name, before.get(name, 0.0)) for name in ENGINE_SECONDS}
        # The sum over engines falls where one was replaced by a new one, which begins at 0.
        return {name: max(0.0, stats[name] - before.get(name, 0.0)) for name in ENGINE_SECONDS if name in stats}

    def _groups_for_means(self, at_least: int) -> list[GroupMeta]:
        """Return the groups that finished since the last step, and earlier ones until there are `at_least`.

        There may be few of them, for example while the buffer was full. A mean of one group says nothing, and the first
        groups to finish are the short ones.
        """
        finished = self._since_step.groups
        groups = (self._earlier_groups + finished)[-max(at_least, len(finished)) :]
        self._earlier_groups = groups[-at_least:]
        return groups

    def rewind(self, version: int, evaluated: bool = True) -> None:
        """Remove the rows of steps after `version`, to which the run was resumed.

        Args:
            version: The version of the checkpoint.
            evaluated: False if the evaluation of this version is made again: its row is removed as well.
        """
        self.metrics.truncate_after(version, evaluated)
        self._last_step_at = time.monotonic()


def _outcome(end: str, meta: GroupMeta | None, failed: str | None) -> str:
    """Return what became of a rolled group: "failed/REASON", "requeued/REASON", "drops/FILTER" or "kept"."""
    if failed is not None:
        return f"{end}/{failed}"
    if end == "filtered" and meta is not None:
        return f"drops/{meta.verdict.reason}"
    return "kept"


def _loop_time() -> float | None:
    """Return the time of the running event loop, None where none runs."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return None
