"""Samples: a run's kept trajectories and its ledger -> those that a step trained, or dropped, with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from ..errors import DataError
from ..logs import trajectories
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
        raise DataError(f"{run_dir} has no {LEDGER}. Give the run directory of a training run.")
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
    kept = [Sample(wanted[tuple(r["key"])], r) for r in trajectories.read(run_dir) if tuple(r["key"]) in wanted]
    if not kept:
        raise DataError(
            f"{run_dir / trajectories.DIRECTORY} holds none of the {len(wanted)} groups of step {step}. Train with"
            " --logger.trajectories 1 (a share of groups)."
        )
    return sorted(kept, key=lambda s: (s.row["key"], s.row["index"]))


def facts_of(sample: Sample) -> list[str]:
    """What is to be said of a trajectory besides its text: verdict, reward, tokens, parts, calls, and why it failed."""
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
    facts = [
        (
            f"{why}; reward {row['reward']}, label {row['label']!r}, ended by"
            f" {row['stop_reason'] or row['finish_reason']!r}"
        ),
        (
            f"{model} tokens by the model, of versions {oldest} to {newest}; {env} by the environment;"
            f" issued at update {row['update']}"
        ),
        "parts: " + (", ".join(f"{name} {value:g}" for name, value in row["parts"].items()) or "none"),
        *(
            f"call {i}: {c['action'][:80]!r} -> {c['outcome']}, reward {c['reward']}{', done' * c['done']}"
            for i, c in enumerate(row["calls"])
        ),
    ]
    return [*facts, row["why"]] if row["why"] else facts


def title_of(sample: Sample) -> str:
    epoch, prompt, attempt = sample.row["key"]
    return f"prompt {prompt}, epoch {epoch}, attempt {attempt}, sample {sample.row['index']}"
