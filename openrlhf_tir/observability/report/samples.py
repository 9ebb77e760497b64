"""Read a run's kept trajectories and its ledger: the samples that a step trained or dropped, with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import DataError
from ...pipeline.ledger.audit import events
from ...pipeline.ledger.lines import LEDGER
from ...telemetry import metrics, trajectories
from ...telemetry.progress import NO_FAULT

ANY = "any"
"""Stands for every reason."""
DROPPED = ("filtered", "failed", "requeued")
"""Events of the ledger with which a group ends untrained."""


class Sample(NamedTuple):
    """A trajectory and what became of it.

    Attributes:
        reason: Why its group was not trained; "" if it was.
        row: The trajectory, as telemetry/trajectories.py writes it.
    """

    reason: str
    row: dict[str, Any]

    @property
    def trained(self) -> bool:
        """Whether the tokens of this trajectory were trained."""
        return not (self.reason or self.row["failed"] or self.row["masked"])


def ends_by_step(run_dir: Path) -> dict[int, dict[tuple[int, ...], str]]:
    """Return, for each learner step, the groups that ended after the step before it, with the reason.

    Args:
        run_dir: The run directory.

    Returns:
        Learner step, as the metrics count it -> key of a group -> why it was not trained, "" if it was.

    Raises:
        DataError: The run has no ledger.
    """
    if not (run_dir / LEDGER).exists():
        raise DataError(_no_ledger(run_dir))
    rows = [line.row for line in events(run_dir / LEDGER)]
    # A step's groups have a line each: the last one ends it. The line has the updates that were made before the step.
    last_line = {row["step"]: number for number, row in enumerate(rows) if row["e"] == "trained" and "step" in row}
    steps: dict[int, dict[tuple[int, ...], str]] = {}
    if not last_line:
        return steps
    updates_before = sorted(last_line)
    # A batch may make several updates. After the last step there are as many as the metrics have.
    updates_after = [*updates_before[1:], max([updates_before[-1] + 1, *metrics.read(run_dir).get("step", ())])]
    previous_end = -1
    for before, step in zip(updates_before, updates_after, strict=True):
        end = last_line[before]
        steps[step] = {
            tuple(row["k"]): "" if row["e"] == "trained" else row.get("reason", "?")
            for row in rows[previous_end + 1 : end + 1]
            if row["e"] == "trained" or row["e"] in DROPPED
        }
        previous_end = end
    return steps


def samples_of(run_dir: Path, step: int, dropped: str | None = None) -> list[Sample]:
    """Return the trajectories of the groups that a learner step trained, or that ended untrained before it.

    Args:
        run_dir: The run directory.
        step: Learner step, as the metrics number it.
        dropped: If given, return the groups that ended untrained between the step before and this one, for this reason
            or for ANY.

    Raises:
        DataError: The run has no such step, kept no trajectories, or dropped nothing for that reason.
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
        reasons = sorted({reason for reason in ends.values() if reason})
        raise DataError(
            f"Before step {step} nothing was dropped as {dropped!r}. Dropped: {', '.join(reasons) or 'nothing'}."
        )
    kept = [Sample(wanted[tuple(row["key"])], row) for row in rows_of(run_dir) if tuple(row["key"]) in wanted]
    if not kept:
        shown = "`play RUN`" if dropped is None else "--dropped"
        raise DataError(
            f"{run_dir} kept no text of the {len(wanted)} groups of step {step}. A few groups are kept: {shown} without"
            " --step shows the latest. --logger.trajectories 1 (a share of groups) keeps all."
        )
    return _in_order(kept)


def _in_order(samples: list[Sample]) -> list[Sample]:
    return sorted(samples, key=lambda sample: (sample.row["key"], sample.row["index"]))


def rows_of(run_dir: Path) -> Iterator[dict[str, Any]]:
    """Yield the share of trajectories that the run keeps, then the samples of the other groups."""
    for directory in trajectories.DIRECTORIES:
        yield from trajectories.read(run_dir, directory)


class Untrained(NamedTuple):
    """What a run did not train, at any time: also before its first step, and of groups that no step has closed yet.

    Attributes:
        counts: Reason -> number of groups, by the ledger. "failed: REASON" for groups that infrastructure or user code
            ended; each attempt counts.
        samples: Their trajectories, as far as they were kept, the latest group first.
    """

    counts: dict[str, int]
    samples: list[Sample]


def untrained_of(run_dir: Path, reason: str = ANY) -> Untrained:
    """Return what the run dropped and what failed in it, for one reason or for ANY.

    Raises:
        DataError: There is no run in the directory, or nothing was dropped for that reason.
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
    wanted = {
        name: count for name, count in counts.most_common() if reason in (ANY, name, name.removeprefix("failed: "))
    }
    if not wanted:
        known = ", ".join(f"{name} {count}" for name, count in counts.most_common())
        raise DataError(
            f"{run_dir}: nothing was dropped or failed{'' if reason == ANY else f' as {reason!r}'} so far."
            f" Dropped or failed: {known or 'nothing'}."
        )
    reasons = {name.removeprefix("failed: ") for name in wanted}
    kept = [Sample(ends[tuple(row["key"])], row) for row in rows_of(run_dir) if ends.get(tuple(row["key"])) in reasons]
    kept.sort(key=lambda sample: (-order[tuple(sample.row["key"])], sample.row["index"]))
    return Untrained(wanted, kept)


def spread_over_groups(samples: Sequence[Sample], limit: int) -> list[Sample]:
    """Return at most `limit` samples: one of every group and reason in turn, before a second one of any."""
    by_reason: dict[str, dict[tuple[int, ...], list[Sample]]] = {}
    for sample in samples:
        by_reason.setdefault(sample.reason, {}).setdefault(tuple(sample.row["key"]), []).append(sample)
    queues = [
        [
            sample
            for round_of_samples in zip_longest(*groups.values())
            for sample in round_of_samples
            if sample is not None
        ]
        for groups in by_reason.values()
    ]
    return [sample for round_of_samples in zip_longest(*queues) for sample in round_of_samples if sample is not None][
        :limit
    ]


def last_trained_of(run_dir: Path) -> tuple[int, list[Sample]]:
    """Return the latest learner step of which a trained group was kept, and its trajectories.

    Raises:
        DataError: The run has made no step yet, or kept no trained group.
    """
    steps = ends_by_step(run_dir)
    if not steps:
        raise DataError(
            f"{run_dir} has not made a learner step yet. --dropped shows what was dropped or failed so far."
        )
    step_of = {key: step for step, ends in steps.items() for key, reason in ends.items() if not reason}
    last = 1
    kept: list[Sample] = []
    for row in rows_of(run_dir):
        step = step_of.get(tuple(row["key"]), 0)
        if step > last:
            last = step
            kept.clear()
        if step == last:
            kept.append(Sample("", row))
    if not kept:
        return max(steps), samples_of(run_dir, max(steps))  # raises
    return last, _in_order(kept)


def _no_ledger(run_dir: Path) -> str:
    if not run_dir.is_dir():
        return f"There is no directory {run_dir}. Give the run directory of a training run (--run-dir)."
    return f"{run_dir} has no {LEDGER}: no training run has sampled here. Give the run directory of a training run."


def facts_of(sample: Sample) -> list[str]:
    """Return what there is to say of a trajectory besides its text, one line each.

    The lines are: verdict, reward and end; environment, tokens and versions; parts of the reward; each call; each
    branch; the verdict on its group; why it failed.
    """
    row = sample.row
    model_tokens = sum(run["tokens"] for run in row["runs"] if run["source"] == "model")
    env_tokens = sum(run["tokens"] for run in row["runs"] if run["source"] == "env")
    oldest, newest = row["versions"] or ("none", "none")
    advantage = row.get("advantage")
    facts = [
        (
            f"{_verdict(sample)}; reward {row['reward']},"
            f" advantage {'unknown' if advantage is None else f'{advantage:.3g}'}, label {row['label']!r},"
            f" ended by {row['stop_reason'] or row['finish_reason']!r}"
        ),
        (
            f"environment {row.get('env', '?')}; {model_tokens} tokens by the model, of versions {oldest} to {newest};"
            f" {env_tokens} by the environment; issued at update {row['update']}"
        ),
        "parts: " + (", ".join(f"{name} {value:g}" for name, value in row["parts"].items()) or "none"),
    ]
    for number, call in enumerate(row["calls"]):
        end = ", done" if call["done"] else ""
        facts.append(f"call {number}: {call['action'][:80]!r} -> {call['outcome']}, reward {call['reward']}{end}")
    for number, runs in enumerate(row.get("branches", ())):
        tokens = sum(run["tokens"] for run in runs)
        text = "".join(run["text"] for run in runs)
        facts.append(f"branch {number}: {tokens} tokens, begins {text[:80]!r}")
    verdict = row.get("verdict")
    if verdict and verdict != sample.reason:
        facts.append(f"verdict of its group: {verdict}")
    if row["why"]:
        facts.append(f"why: {row['why']}")
    return facts


def _verdict(sample: Sample) -> str:
    """Return what became of the trajectory, with the reason."""
    if sample.row["failed"]:
        return f"failed: {sample.row['failed']}"
    if sample.reason:
        return f"dropped: {sample.reason}"
    if sample.row["masked"]:
        return f"masked: {sample.row['masked']}"
    return "trained"


def title_of(sample: Sample) -> str:
    """Return the identity of a trajectory in words."""
    epoch, prompt, attempt = sample.row["key"]
    return f"prompt {prompt}, epoch {epoch}, attempt {attempt}, sample {sample.row['index']}"
