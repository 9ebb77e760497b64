"""Observer: what the loop tells people. Phases become spans of the trace, groups and reports a row of metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from ..engines.session_trace import AGENT_FACTS
from ..episodes.group_meta import CALL_COUNT_RANGES, CALL_SECONDS, CALL_STATS, CODE_STATS, SHARE_PREFIX
from ..episodes.sample_selection import LENGTH_STATS
from ..types import GroupMeta, PublishReport, StepReport
from .bias_meter import SelectionMeter

log = logging.getLogger(__name__)
MAX_EXPLAINED = 100
"""Faults that are told in words, over a run."""
TRACKS = {
    "turn": "learner",
    "accumulate": "learner",
    "step": "learner",
    "push": "weights",
    "drain": "weights",
    "checkpoint": "ckpt",
}
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


N_SHARES = tuple(f"n_calls/{name}" for name in CALL_COUNT_RANGES)
NOT_PARTS = frozenset(
    {"calls", "truncated", "correct", "used_code", CALL_SECONDS, *CALL_STATS, *CODE_STATS, *LENGTH_STATS, *AGENT_FACTS}
    | set(N_SHARES)
)
"""What stands in a group's stats beside the parts of its rewards, or has a metric of its own."""


LEAST = 1e-6
"""Sums of means times counts are whole numbers but for rounding: below it there was no call."""


class Rows(Protocol):
    """Where rows of metrics go; logs/metrics.py is one."""

    def log(self, step: int, values: Mapping[str, float], /) -> None: ...
    def truncate_after(self, step: int, /, evaluated: bool = True) -> object: ...


class Spans(Protocol):
    """Where spans go; logs/timeline.py is one."""

    def add(self, track: str, name: str, start: float, end: float, /) -> None: ...


class Display(Protocol):
    """What shows a step, and an evaluation, to a person; logs/progress.py is one."""

    def update(self, step: int, row: Mapping[str, float], /) -> None: ...
    def evaluated(self, step: int, figures: Mapping[str, float], /) -> None: ...
    def group(self, end: str, meta: GroupMeta | None, failed: str | None, /) -> None: ...
    def notice(self, lines: Sequence[str], /) -> None:
        """Lines that a person should read now; none: the last notice is over."""


class Observer:
    """Collects between two steps, writes at each step. Groups count when they finish, trained or not: all since the
    last step, a batch at least."""

    def __init__(
        self,
        metrics: Rows,
        trace: Spans,
        progress: Display,
        envs: Sequence[str] = (),
        without_calls: Collection[str] = (),
    ) -> None:
        """`envs`: the environments of the run; where there are several, each has metrics of its own, `env/NAME/...`.
        `without_calls`: see rollout_metrics."""
        self.metrics, self.trace, self.progress = metrics, trace, progress
        self.envs = tuple(envs) if len(envs) > 1 else ()
        self.without_calls = frozenset(without_calls)
        self.now, self.since = "start", 0.0
        """The trainer's phase, and when it began in the event loop's seconds."""
        self.on_phase: Callable[[], None] = lambda: None
        self._canary = 0.0
        self._push: dict[str, float] = {}
        """Metrics of the last weight push."""
        self.selection = SelectionMeter(self.envs)
        self._last_step = time.monotonic()
        self._before: list[GroupMeta] = []
        self._explained: set[tuple[str, str]] = set()
        self._reset()

    def _reset(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._ends: Counter[str] = Counter()
        self._groups: list[GroupMeta] = []

    @contextmanager
    def phase(self, name: str, version: int) -> Iterator[None]:
        """A stage of the trainer: named in the trace, timed in the metrics, told by the watchdog."""
        before, self.now, self.since = self.now, name, asyncio.get_running_loop().time()
        self.on_phase()
        start = time.time()
        try:
            yield
        finally:
            end = time.time()
            self.now = before
            self._seconds[METRICS[name]] += end - start
            if name in TRACKS:
                self.trace.add(TRACKS[name], f"{name} {version}", start, end)

    @contextmanager
    def evaluating(self, version: int) -> Iterator[None]:
        """An evaluation, which is no phase of the trainer's: named in the trace."""
        self.on_phase()
        start = time.time()
        try:
            yield
        finally:
            self.trace.add("eval", f"evaluate {version}", start, time.time())

    def evaluated(self, version: int, figures: Mapping[str, float]) -> None:
        """An evaluation's figures, or that it failed: a row of the version that it measured."""
        self.metrics.log(version, figures)
        self.progress.evaluated(version, figures)

    def group(self, end: str, meta: GroupMeta | None, failed: str | None) -> None:
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
            self._explain(meta)
            if end == "buffered":
                for reason in filter(None, meta.masked):
                    self._ends[f"masked/{reason}"] += 1
            if failed is None:
                self._groups.append(meta)

    def left(self, end: str, meta: GroupMeta, reason: str) -> None:
        """An accepted group, of which `group` was told, leaves untrained: as surplus, or its step changed nothing."""
        self._ends[f"{end}/{reason}"] += 1
        self.selection.left(end, meta)

    def _end_of_env(self, end: str, meta: GroupMeta, failed: str | None) -> None:
        of = f"env/{meta.env}"
        if failed is not None:
            self._ends[f"{of}/{'failed' if end == 'failed' else 'requeued'}/{failed}"] += 1
        elif end == "filtered":
            self._ends[f"{of}/drops/{meta.verdict.reason}"] += 1
        else:
            self._ends[f"{of}/kept"] += 1
        self._ends[f"{of}/trajectories_failed"] += sum(meta.failures.values())

    def _explain(self, meta: GroupMeta) -> None:
        """A fault's own words, once for each: thousands of trajectories may fail of one cause."""
        for reason, words in meta.why.items():
            if (reason, words) not in self._explained and len(self._explained) < MAX_EXPLAINED:
                self._explained.add((reason, words))
                log.warning("a trajectory of group %s failed (%s): %s", meta.key, reason, words)

    def pushed(self, report: PublishReport) -> None:
        self._canary = report.canary_max_diff
        self._push = {
            "canary_level": report.canary_level,
            "canary_excess": round(report.canary_excess, 4),
            "canary_repeats": float(report.canary_repeats),
            "pushes_repeated": float(report.pushes_repeated),
            "push_write_s": round(report.write_s, 4),
            "push_mib": round(report.nbytes / 2**20, 3),
            "push_delta": float(report.delta),
        }

    def spans(self, track: str, intervals: list[tuple[float, float]], name: str) -> None:
        for start, end in intervals:
            self.trace.add(track, name, start, end)

    def step(
        self, report: StepReport, *, batch_groups: int, rolling: int, buffered: int, extra: Mapping[str, float]
    ) -> None:
        """Write the row of a step.

        Args:
            report: What the learner says of the step.
            batch_groups: Groups of a batch. Means are over at least so many groups.
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
        """Groups that finished since the last step. Where those are few, e.g. while the buffer was full, earlier ones
        too: a mean of one group says nothing, and the first to finish are the short ones."""
        groups = (self._before + self._groups)[-max(at_least, len(self._groups)) :]
        self._before = groups[-at_least:]
        return groups

    def rewind(self, version: int, evaluated: bool = True) -> None:
        """A resume: rows of steps after `version` never happened, nor did its evaluation where it is made again."""
        self.metrics.truncate_after(version, evaluated)
        self._last_step = time.monotonic()


def rollout_metrics(groups: list[GroupMeta], without_calls: Collection[str] = ()) -> dict[str, float]:
    """Means over all valid trajectories of the groups that finished, filtered ones included (so they are not biased by
    filters).

    without_calls: environments in which a response makes no call; where all groups are of these, nothing is said of how
    many called a tool."""
    correct = np.array([c for g in groups for c in g.correct], bool)
    code = np.array([c for g in groups for c in g.used_code], bool)
    tokens = np.array([n for g in groups for n in g.response_tokens], float)
    if not len(correct):
        return {}
    weights = [len(g.correct) for g in groups]
    out = {
        "reward_mean": float(np.mean([r for g in groups for r in g.rewards])),
        "accuracy": float(correct.mean()),
        "response_tokens_mean": float(tokens.mean()),
        "response_tokens_p95": float(np.percentile(tokens, 95)),
        "calls_mean": float(np.average([g.stats["calls"] for g in groups], weights=weights)),
        "truncated": float(np.average([g.stats["truncated"] for g in groups], weights=weights)),
        "group_seconds_mean": float(np.mean([g.seconds for g in groups])),
    }
    for name in LENGTH_STATS:  # with over-sampling only
        if some := [g.stats[name] for g in groups if name in g.stats]:
            out[f"oversample/{name}"] = float(np.mean(some))
    for name in AGENT_FACTS:  # with external agents only
        if told := [(g.stats[name], n) for g, n in zip(groups, weights, strict=True) if name in g.stats]:
            out[f"agent/{name}"] = float(np.average([v for v, _ in told], weights=[n for _, n in told]))
    out |= reward_parts(groups, weights)
    if code.any() or any(g.env not in without_calls for g in groups):
        out["code_ratio"] = float(code.mean())
        if correct.any():
            out["code_in_correct"] = float(code[correct].mean())
        counted = [g for g in groups if any(name in g.stats for name in N_SHARES)]
        samples = sum(len(g.correct) for g in counted)
        out |= {
            name: sum(g.stats.get(name, 0.0) * len(g.correct) for g in counted) / samples
            for name in (N_SHARES if samples else ())
        }
    return out | call_metrics(groups)


def call_metrics(groups: list[GroupMeta]) -> dict[str, float]:
    """Right responses per call (OTC), calls per right response, the share of the calls that ran without an error, by
    verdict, the share of the programs that were run, and of the responses with one that had answered before (ToRL).
    Ratios of sums."""
    told = [g for g in groups if g.correct and all(name in g.stats for name in CALL_STATS)]
    right = sum(sum(g.correct) for g in told)
    calls, of_right, ok, ok_of_right = (
        sum(g.stats[name] * len(g.correct) for g in told) for name in ("calls", *CALL_STATS)
    )
    written, run, responses, after = (sum(g.stats.get(name, 0.0) * len(g.correct) for g in told) for name in CODE_STATS)
    ratios = {
        "code_executed": (run, written),
        "code_after_answer": (after, responses),
        "tool_productivity": (right, calls),
        "calls_in_correct": (of_right, right),
        "code_pass": (ok, calls),
        "code_pass_correct": (ok_of_right, of_right),
        "code_pass_incorrect": (ok - ok_of_right, calls - of_right),
    }
    return {
        name: min(num / den, 1.0) if name.startswith("code_") else num / den
        for name, (num, den) in ratios.items()
        if den > LEAST
    }


def env_metrics(env: str, groups: list[GroupMeta], without_calls: Collection[str]) -> dict[str, float]:
    """What is told of one environment of several: the metrics of the whole that an environment makes differ, and how
    long its calls took."""
    found = rollout_metrics(groups, without_calls)
    kept = (
        "reward_mean",
        "accuracy",
        "code_ratio",
        "response_tokens_mean",
        "calls_mean",
        "truncated",
        "group_seconds_mean",
    )
    out = {f"env/{env}/{name}": found[name] for name in kept if name in found} | {
        f"env/{env}/groups": float(len(groups))
    }
    if timed := [(g.stats[CALL_SECONDS], g.stats["calls"] * len(g.correct)) for g in groups if CALL_SECONDS in g.stats]:
        out[f"env/{env}/call_seconds_mean"] = float(
            np.average([s for s, _ in timed], weights=[calls for _, calls in timed])
        )
    return out


def reward_parts(groups: list[GroupMeta], weights: list[int]) -> dict[str, float]:
    """Mean of each part of the rewards over the trajectories that have it, as `reward/<part>`: whatever a reward
    records by name."""
    names = dict.fromkeys(
        name for g in groups for name in g.stats if name not in NOT_PARTS and not name.startswith(SHARE_PREFIX)
    )
    some = {
        name: [
            (g.stats[name], n * g.stats.get(SHARE_PREFIX + name, 1.0))
            for g, n in zip(groups, weights, strict=True)
            if name in g.stats
        ]
        for name in names
    }
    return {
        f"reward/{name}": float(np.average([v for v, _ in found], weights=[n for _, n in found]))
        for name, found in some.items()
    }
