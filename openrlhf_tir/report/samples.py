"""Samples: a run's kept trajectories and its ledger -> those that a step trained, or that were dropped before it, with the reason."""

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


def samples_of(run_dir: Path, step: int, dropped: str | None = None) -> list[Sample]:
    """Trajectories of the groups that learner step `step` (1 is the first) trained; with `dropped`, of those that ended untrained between the
    step before and this one, for that reason or for ANY.

    Raises DataError when the run has no such step, kept no trajectories, or dropped nothing for that reason.
    """
    if not (run_dir / LEDGER).exists():
        raise DataError(f"{run_dir} has no {LEDGER}. Give the run directory of a training run.")
    path = run_dir / LEDGER
    # The ledger counts the updates before the step.
    last = {line.row["step"] + 1: line.number for line in events(path) if line.row["e"] == "trained" and "step" in line.row}
    if step not in last:
        raise DataError(f"{run_dir} has no learner step {step}. It has: {f'{min(last)} to {max(last)}' if last else 'none'}.")
    since = max((line for s, line in last.items() if s < step), default=-1)
    here = [line.row for line in events(path) if since < line.number <= last[step]]
    ends = {tuple(e["k"]): "" if e["e"] == "trained" else e.get("reason", "?") for e in here if e["e"] == "trained" or e["e"] in DROPPED}
    wanted = {key: reason for key, reason in ends.items() if (reason == "" if dropped is None else reason and dropped in (ANY, reason))}
    if dropped is not None and not wanted:
        found = sorted({reason for reason in ends.values() if reason})
        raise DataError(f"Before step {step} nothing was dropped as {dropped!r}. Dropped: {', '.join(found) or 'nothing'}.")
    kept = [Sample(wanted[tuple(r["key"])], r) for r in trajectories.read(run_dir) if tuple(r["key"]) in wanted]
    if not kept:
        raise DataError(
            f"{run_dir / trajectories.DIRECTORY} holds none of the {len(wanted)} groups of step {step}. Train with --logger.trajectories 1 (a share of groups)."
        )
    return sorted(kept, key=lambda s: (s.row["key"], s.row["index"]))
