"""Samples: a run's kept trajectories and its ledger -> those that a step trained, or dropped, with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import DataError
from ..logs import trajectories
from ..logs.progress import NO_FAULT
from ..replay.audit import events

LEDGER = "ledger.jsonl"
ANY = "any"
DROPPED = ("filtered", "failed", "requeued")


class Sample(NamedTuple):
    """`reason`: why the group was not trained, "" for one that was; `row` is logs/trajectories.py's."""

    reason: str
    row: dict[str, Any]

    @property
    def trained(self) -> bool:
        return not (self.reason or self.row["failed"] or self.row["masked"])


def ends_by_step(run_dir: Path) -> dict[int, dict[tuple[int, ...], str]]:
    """Learner step (1 is the first) -> key -> reason, of the groups that ended after the step before it; "" for those
    that it trained.

    Raises DataError when the run has no ledger.
    """
    if not (run_dir / LEDGER).exists():
        raise DataError(_no_ledger(run_dir))
    rows = [line.row for line in events(run_dir / LEDGER)]
    # The ledger counts the updates before the step. A step's groups have a line each: the last one ends it.
    last = {row["step"] + 1: i for i, row in enumerate(rows) if row["e"] == "trained" and "step" in row}
    steps: dict[int, dict[tuple[int, ...], str]] = {}
    since = -1
    for step, end in sorted(last.items()):
        here = rows[since + 1 : end + 1]
        steps[step] = {
            tuple(e["k"]): "" if e["e"] == "trained" else e.get("reason", "?")
            for e in here
            if e["e"] == "trained" or e["e"] in DROPPED
        }
        since = end
    return steps


def samples_of(run_dir: Path, step: int, dropped: str | None = None) -> list[Sample]:
    """Trajectories of the groups that learner step `step` (1 is the first) trained; with `dropped`, of those that ended
    untrained between the step before and this one, for that reason or for ANY.

    Raises DataError when the run has no such step, kept no trajectories, or dropped nothing for that reason.
    """
    steps = ends_by_step(run_dir)
    if step not in steps:
        raise DataError(
            f"{run_dir} has no learner step {step}. It has: {f'{min(steps)} to {max(steps)}' if steps else 'none'}."
            " --dropped without --step shows what was dropped at any time, also before the first step."
        )
    ends = steps[step]
    wanted = {
        key: reason
        for key, reason in ends.items()
        if (reason == "" if dropped is None else reason and dropped in (ANY, reason))
    }
    if dropped is not None and not wanted:
        found = sorted({reason for reason in ends.values() if reason})
        raise DataError(
            f"Before step {step} nothing was dropped as {dropped!r}. Dropped: {', '.join(found) or 'nothing'}."
        )
    kept = [
        Sample(wanted[tuple(r["key"])], r)
        for r in (trajectories.read(run_dir) if dropped is None else _all_rows(run_dir))
        if tuple(r["key"]) in wanted
    ]
    if not kept:
        remedy = (
            "Train with --logger.trajectories 1 (a share of groups)."
            if dropped is None
            else "A few of each reason are kept (logger.dropped): --dropped without --step shows them."
            " --logger.trajectories 1 keeps all."
        )
        raise DataError(
            f"{run_dir / trajectories.DIRECTORY} holds none of the {len(wanted)} groups of step {step}. {remedy}"
        )
    return sorted(kept, key=lambda s: (s.row["key"], s.row["index"]))


def _all_rows(run_dir: Path) -> Iterator[dict[str, Any]]:
    """The share that the run keeps, and the samples of what it dropped."""
    yield from trajectories.read(run_dir)
    yield from trajectories.read(run_dir, trajectories.DROPPED_DIRECTORY)


class Untrained(NamedTuple):
    """What a run did not train, at any time: also before its first step, and of groups whose end is not recorded yet.

    Attributes:
        counts: Reason -> groups, by the ledger. "failed: REASON" for those that infrastructure or user code ended,
            each attempt counted.
        samples: Their trajectories as far as they were kept, the latest group first.
    """

    counts: dict[str, int]
    samples: list[Sample]


def untrained_of(run_dir: Path, reason: str = ANY) -> Untrained:
    """What the run dropped, or what failed in it, for one reason or for ANY.

    Raises DataError when there is no run in the directory, or when nothing was dropped for that reason.
    """
    if not (run_dir / LEDGER).exists():
        raise DataError(_no_ledger(run_dir))
    counts: Counter[str] = Counter()
    ends: dict[tuple[int, ...], str] = {}
    order: dict[tuple[int, ...], int] = {}
    for number, row in events(run_dir / LEDGER):
        if row["e"] in DROPPED and row.get("reason") not in NO_FAULT:
            name = row.get("reason", "?") if row["e"] == "filtered" else f"failed: {row.get('reason', '?')}"
            counts[name] += 1
            ends[tuple(row["k"])] = row.get("reason", "?")
            order[tuple(row["k"])] = number
    wanted = {name: n for name, n in counts.most_common() if reason in (ANY, name, name.removeprefix("failed: "))}
    if not wanted:
        known = ", ".join(f"{name} {n}" for name, n in counts.most_common())
        raise DataError(
            f"{run_dir}: nothing was dropped or failed{'' if reason == ANY else f' as {reason!r}'} so far."
            f" Dropped or failed: {known or 'nothing'}."
        )
    reasons = {name.removeprefix("failed: ") for name in wanted}
    kept = [
        Sample(ends[tuple(row["key"])], row) for row in _all_rows(run_dir) if ends.get(tuple(row["key"])) in reasons
    ]
    kept.sort(key=lambda s: (-order[tuple(s.row["key"])], s.row["index"]))
    return Untrained(wanted, kept)


def spread_over_groups(samples: Sequence[Sample], limit: int) -> list[Sample]:
    """At most `limit` samples: one of every group and reason in turn before a second one of any."""
    by_reason: dict[str, dict[tuple[int, ...], list[Sample]]] = {}
    for sample in samples:
        by_reason.setdefault(sample.reason, {}).setdefault(tuple(sample.row["key"]), []).append(sample)
    queues = [
        [s for turn in zip_longest(*groups.values()) for s in turn if s is not None] for groups in by_reason.values()
    ]
    return [s for turn in zip_longest(*queues) for s in turn if s is not None][:limit]


def last_step_of(run_dir: Path) -> int:
    """The latest learner step that the run made. Raises DataError when there is none."""
    steps = ends_by_step(run_dir)
    if not steps:
        raise DataError(
            f"{run_dir} has not made a learner step yet. --dropped shows what was dropped or failed so far."
        )
    return max(steps)


def _no_ledger(run_dir: Path) -> str:
    if not run_dir.is_dir():
        return f"There is no directory {run_dir}. Give the run directory of a training run (--run-dir)."
    return f"{run_dir} has no {LEDGER}: no training run has sampled here. Give the run directory of a training run."


def facts_of(sample: Sample) -> list[str]:
    """What is to be said of a trajectory besides its text: verdict, environment, reward, advantage, tokens, parts,
    calls, and why it failed."""
    row = sample.row
    model, env = (sum(r["tokens"] for r in row["runs"] if r["source"] == source) for source in ("model", "env"))
    oldest, newest = row["versions"] or ("none", "none")
    why = next(
        (
            f"{name}: {fact}"
            for name, fact in (("failed", row["failed"]), ("dropped", sample.reason), ("masked", row["masked"]))
            if fact
        ),
        "trained",
    )
    advantage = row.get("advantage")
    facts = [
        (
            f"{why}; reward {row['reward']}, advantage {'unknown' if advantage is None else f'{advantage:.3g}'}, label"
            f" {row['label']!r}, ended by {row['stop_reason'] or row['finish_reason']!r}"
        ),
        (
            f"environment {row.get('env', '?')}; {model} tokens by the model, of versions {oldest} to {newest}; {env}"
            f" by the environment; issued at update {row['update']}"
        ),
        "parts: " + (", ".join(f"{name} {value:g}" for name, value in row["parts"].items()) or "none"),
        *(
            f"call {i}: {c['action'][:80]!r} -> {c['outcome']}, reward {c['reward']}{', done' * c['done']}"
            for i, c in enumerate(row["calls"])
        ),
        *(
            f"branch {i}: {sum(r['tokens'] for r in runs)} tokens, begins {_text(runs)[:80]!r}"
            for i, runs in enumerate(row.get("branches", ()))
        ),
    ]
    verdict = row.get("verdict")
    if verdict and verdict != sample.reason:
        facts.append(f"verdict of its group: {verdict}")
    return [*facts, f"why: {row['why']}"] if row["why"] else facts


def _text(runs: Sequence[dict[str, Any]]) -> str:
    return "".join(run["text"] for run in runs)


def title_of(sample: Sample) -> str:
    epoch, prompt, attempt = sample.row["key"]
    return f"prompt {prompt}, epoch {epoch}, attempt {attempt}, sample {sample.row['index']}"
