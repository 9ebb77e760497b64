"""The metrics of a run: one flat dict per learner step, written to metrics.jsonl and to mirrors; and read again.

metrics.jsonl is the record that `report` reads; TensorBoard and wandb (observability/sinks.py) are mirrors. A resume
drops the rows of the steps that it takes back. No mirror and no disk ever ends training: a refusal is logged once,
tried again, and counted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from ..config import Logger
from .jsonl import PatientWriter, finite, read_rows, replace_rows, set_aside

log = logging.getLogger(__name__)

FILE = "metrics.jsonl"
"""Name of the file in the run directory."""
NOT_METRICS = ("step", "time")
"""Columns of the file that are not metrics."""


class Sink(Protocol):
    """Where metrics are written besides."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write the metrics of a step, by name."""

    def text(self, step: int, texts: Mapping[str, str]) -> None:
        """Write texts of samples, in Markdown, by tag."""

    def rollback(self, step: int) -> None:
        """Take back the steps after `step`."""

    def close(self) -> None:
        """Write what is buffered, and end."""


class MetricsLog:
    """Where the loop writes its metrics; a context manager.

    Args:
        run_dir: The run directory.
        logger: The [logger] section.
        mirrors: What gets copies; closed with the log. No method of theirs raises.
    """

    def __init__(self, run_dir: Path, logger: Logger, mirrors: Sequence[Sink] = ()):
        self.path = Path(run_dir) / FILE
        self._every = logger.logging_steps
        self._mirrors = tuple(mirrors)
        self._writer = PatientWriter(self.path)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one row. Mirrors get every `logging_steps`-th step, and every row that carries an evaluation."""
        values = {name: finite(value) for name, value in metrics.items() if name not in NOT_METRICS}
        self._writer.write({"step": int(step), "time": time.time(), **values})
        if step % self._every and not _has_evaluation(values):
            return
        present = {name: value for name, value in values.items() if value is not None}
        for mirror in self._mirrors:
            mirror.log(step, present)

    def text(self, step: int, texts: Mapping[str, str]) -> None:
        """Give the mirrors texts by tag, in Markdown. metrics.jsonl gets none."""
        for mirror in self._mirrors:
            mirror.text(step, texts)

    def truncate_after(self, step: int, evaluated: bool = True) -> int:
        """Remove the rows of steps > `step`, which a resume takes back.

        Lines that are not rows are moved to metrics.jsonl.garbled. If the disk is full, the rows stay: `read` prefers
        later rows.

        Args:
            step: The last step that stays.
            evaluated: Whether the evaluation of `step` itself stays too; otherwise it is removed, and will be made
                again.

        Returns:
            The number of rows that were removed.
        """
        self._writer.close()
        removed = 0
        try:
            rows, _ = set_aside(self.path, _is_row)
            last_evaluation = step if evaluated else step - 1
            kept = [row for row in rows if row["step"] <= (last_evaluation if _has_evaluation(row) else step)]
            replace_rows(self.path, kept)
            removed = len(rows) - len(kept)
        except OSError as error:
            log.warning(
                "%s cannot be rewritten (%s): rows of steps after %d stay until those steps are logged again.",
                self.path,
                error,
                step,
            )
        self._writer = PatientWriter(self.path)
        for mirror in self._mirrors:
            mirror.rollback(step)
        return removed

    def close(self) -> None:
        """Close the file and the mirrors."""
        self._writer.close()
        for mirror in self._mirrors:
            mirror.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc) -> None:
        self.close()


def read(run_dir: Path) -> dict[str, list]:
    """Return the columns of metrics.jsonl, in order of step. All have the same length; None where a step lacks the
    metric.

    Rows of one step are merged; the later value wins. {} if nothing was logged yet.
    """
    merged: dict[int, dict[str, Any]] = {}
    for row in read_rows(Path(run_dir) / FILE, _is_row):
        merged.setdefault(row["step"], {}).update(row)
    rows = [merged[step] for step in sorted(merged)]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def total(columns: Mapping[str, list], name: str) -> float:
    """Return the sum of a metric over the run; 0 if no step has it."""
    return sum(value or 0 for value in columns.get(name, ()))


def untrained(columns: Mapping[str, list]) -> dict[str, float]:
    """Return the metrics that count dropped and failed groups, with their sum over the run, the largest first."""
    counts = {name: total(columns, name) for name in columns if name.startswith(("drops/", "failed/"))}
    return {name: count for name, count in sorted(counts.items(), key=lambda item: -item[1]) if count}


def last(columns: Mapping[str, list], name: str) -> float | None:
    """Return the last value of a metric; None if no step has it."""
    return next((value for value in reversed(columns.get(name, [])) if value is not None), None)


def _has_evaluation(row: Mapping[str, Any]) -> bool:
    """Return True if the row holds the figures of an evaluation. Such a row holds nothing else."""
    return any(name.startswith("eval/") for name in row)


def _is_row(row: dict[str, Any]) -> bool:
    step = row.get("step")
    numbers = (value for name, value in row.items() if name != "step")
    return type(step) is int and all(value is None or type(value) in (int, float) for value in numbers)
