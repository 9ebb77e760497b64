"""What the loop reports: its phases become spans of the timeline, its groups and steps rows of metrics.

phase, evaluating                     a span; the seconds of a phase are also a metric of the next step
group_finished, group_left, push_finished    counted until the next step
step_finished                         one row of metrics
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from ..pushes import PublishReport
from ..types import GroupMeta, StepReport
from .bias_meter import SelectionMeter
from .group_metrics import env_metrics, rollout_metrics

log = logging.getLogger(__name__)
MAX_EXPLAINED = 100
"""Different error messages of trajectories that are logged, over a run."""
TRACKS = {
    "turn": "learner",
    "accumulate": "learner",
    "step": "learner",
    "push": "weights",
    "drain": "weights",
    "checkpoint": "ckpt",
}
"""Phase -> track of the timeline."""
METRICS = {
    "wait for replay": "replay_wait_s",
    "wait for gate": "gate_wait_s",
    "drain": "drain_s",
    "turn": "turn_s",
    "accumulate": "accumulate_s",
    "step": "step_s",
    "push": "push_s",
    "checkpoint": "checkpoint_s",
    "wait for evaluation": "evaluate_s",
}
"""Phase -> metric of its seconds."""


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


def _loop_time() -> float | None:
    """Return the time of the running event loop, None where none runs."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return None


class Observer:
    """Collects figures between two steps and writes them at each step.

    Groups count when they finish, trained or not: all groups since the last step, and at least a batch of them.
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
            without_calls: Environments in which a response makes no call; see group_metrics.py.
        """
        self.metrics = metrics
        self.trace = trace
        self.progress = progress
        self.envs = tuple(envs) if len(envs) > 1 else ()
        self.without_calls = frozenset(without_calls)
        self.current_phase = "start"
        self.phase_started_at = _loop_time()
        """When the current phase began, in seconds of the event loop; None if the observer was made outside of one."""
        self.on_phase: Callable[[], None] = lambda: None
        """Called at the beginning of each phase."""
        self._canary = 0.0
        self._push: dict[str, float] = {}
        """Metrics of the last weight push."""
        self.selection = SelectionMeter(self.envs)
        self._last_step = time.monotonic()
        self._previous_groups: list[GroupMeta] = []
        """The latest groups of the last row, a batch of them."""
        self._explained: set[tuple[str, str]] = set()
        self._reset()

    @property
    def phase_s(self) -> float:
        """Seconds for which the current phase lasts."""
        began = self.phase_started_at
        return 0.0 if began is None else asyncio.get_running_loop().time() - began

    def _reset(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._ends: Counter[str] = Counter()
        self._groups: list[GroupMeta] = []

    @contextmanager
    def phase(self, name: str, version: int) -> Iterator[None]:
        """Mark a phase of the trainer: a span of the timeline, seconds of the next row, and the watchdog's message."""
        outer, outer_started_at = self.current_phase, self.phase_started_at
        self.current_phase = name
        self.phase_started_at = asyncio.get_running_loop().time()
        self.on_phase()
        start = time.time()
        try:
            yield
        finally:
            end = time.time()
            self.current_phase = outer
            self.phase_started_at = outer_started_at
            self._seconds[METRICS[name]] += end - start
            if name in TRACKS:
                self.trace.add(TRACKS[name], f"{name} {version}", start, end)

    @contextmanager
    def evaluating(self, version: int) -> Iterator[None]:
        """Mark an evaluation, which is a span of the timeline and no phase of the trainer."""
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
            end: The state that it moved to.
            meta: Its metadata; None if it failed before there was any.
            failed: The reason if the attempt failed; None if it did not.
        """
        self.selection.ended(end, meta)
        self.progress.group(end, meta, failed)
        if failed is not None:
            self._ends[f"{'failed' if end == 'failed' else 'requeued'}/{failed}"] += 1
        elif end == "filtered" and meta is not None:
            self._ends[f"drops/{meta.verdict.reason}"] += 1
        if meta is not None and meta.env in self.envs:
            self._end_of_env(end, meta, failed)
        if meta is not None:
            for reason, n in meta.failures.items():
                self._ends[f"trajectories_failed/{reason}"] += n
            self._log_errors(meta)
            if end == "buffered":
                for reason in filter(None, meta.masked):
                    self._ends[f"masked/{reason}"] += 1
            if failed is None:
                self._groups.append(meta)

    def group_left(self, end: str, meta: GroupMeta, reason: str) -> None:
        """Count an accepted group that ends untrained: as surplus, or because its step changed nothing."""
        self._ends[f"{end}/{reason}"] += 1
        self.selection.left(end, meta)

    def _end_of_env(self, end: str, meta: GroupMeta, failed: str | None) -> None:
        prefix = f"env/{meta.env}"
        if failed is not None:
            self._ends[f"{prefix}/{'failed' if end == 'failed' else 'requeued'}/{failed}"] += 1
        elif end == "filtered":
            self._ends[f"{prefix}/drops/{meta.verdict.reason}"] += 1
        else:
            self._ends[f"{prefix}/kept"] += 1
        self._ends[f"{prefix}/trajectories_failed"] += sum(meta.failures.values())

    def _log_errors(self, meta: GroupMeta) -> None:
        """Log each different error message once: thousands of trajectories may fail for the same reason."""
        for reason, message in meta.why.items():
            if (reason, message) not in self._explained and len(self._explained) < MAX_EXPLAINED:
                self._explained.add((reason, message))
                log.warning("a trajectory of group %s failed (%s): %s", meta.key, reason, message)

    def push_finished(self, report: PublishReport) -> None:
        """Keep the figures of a weight push for the rows until the next push."""
        self._canary = report.canary_max_diff
        self._push = {
            "canary_level": report.canary_level,
            "canary_excess": round(report.canary_excess, 4),
            "canary_repeats": float(report.canary_repeats),
            "pushes_repeated": float(report.pushes_repeated),
            "push_write_s": round(report.write_s, 4),
            "push_mib": round(report.nbytes / 2**20, 3),
            "push_delta": float(report.delta),
            **{name: round(value, 4) for name, value in report.parts.items()},
        }

    def spans(self, track: str, intervals: list[tuple[float, float]], name: str) -> None:
        """Add spans of one name to a track of the timeline; (start, end) in seconds since the epoch."""
        for start, end in intervals:
            self.trace.add(track, name, start, end)

    def step_finished(
        self, report: StepReport, *, batch_groups: int, rolling: int, buffered: int, extra: Mapping[str, float]
    ) -> None:
        """Write the row of a step.

        Args:
            report: The learner's report of the step.
            batch_groups: Groups of a batch. Means are over at least this many groups.
            rolling: Groups on engines.
            buffered: Accepted groups that no batch has taken yet.
            extra: More metrics of the row.
        """
        now = time.monotonic()
        wall, self._last_step = now - self._last_step, now
        groups = self._latest(batch_groups)
        row = {
            **rollout_metrics(groups, self.without_calls),
            **{
                name: value
                for env in self.envs
                for name, value in env_metrics(env, [g for g in groups if g.env == env], self.without_calls).items()
            },
            **self.selection.row(),
            **report.metrics,
            **{name: float(n) for name, n in self._ends.items()},
            **{name: round(s, 4) for name, s in self._seconds.items()},
            **extra,
            "rolling": float(rolling),
            "buffered": float(buffered),
            "canary_max_diff": self._canary,
            **self._push,
            "trained_tokens": float(report.trained_tokens),
            "tokens_per_s": report.trained_tokens / wall,
            "wall_s": wall,
        }
        self.metrics.log(report.version, row)
        self.progress.update(report.version, row)
        self._reset()

    def _latest(self, at_least: int) -> list[GroupMeta]:
        """Return the groups that finished since the last step, and earlier ones until there are `at_least`.

        There may be few of them, for example while the buffer was full. A mean of one group says nothing, and the first
        groups to finish are the short ones.
        """
        groups = (self._previous_groups + self._groups)[-max(at_least, len(self._groups)) :]
        self._previous_groups = groups[-at_least:]
        return groups

    def rewind(self, version: int, evaluated: bool = True) -> None:
        """Remove the rows of steps after `version`, to which the run was resumed.

        Args:
            version: The version of the checkpoint.
            evaluated: False if the evaluation of this version is made again: its row is removed as well.
        """
        self.metrics.truncate_after(version, evaluated)
        self._last_step = time.monotonic()
