"""The metrics of a run: one flat dict per learner step, written to metrics.jsonl, TensorBoard and wandb; and read
again.

metrics.jsonl is the record that `report` reads; the other two are mirrors. A resume drops the rows of the steps that it
takes back. No mirror and no disk ever ends training: a refusal is logged once, tried again, and counted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from ..config import Logger
from .jsonl import PatientWriter, finite, read_rows, replace_rows, set_aside
from .sinks import Mirror, TensorBoardSink, WandbSink
from .tags import tag

log = logging.getLogger(__name__)

FILE = "metrics.jsonl"
"""Name of the file in the run directory."""
NOT_METRICS = ("step", "time")
"""Columns of the file that are not metrics."""


class MetricsLog:
    """Where the loop writes its metrics; a context manager.

    Args:
        run_dir: The run directory.
        logger: The [logger] section.
        config: The configuration, which the mirrors show as hyper-parameters.

    Raises:
        ConfigError: The package of a configured mirror is not installed.
    """

    def __init__(self, run_dir: Path, logger: Logger, config: Mapping[str, Any] | None = None):
        self.path = Path(run_dir) / FILE
        self._every = logger.logging_steps
        self._sinks: list[Mirror] = []
        if logger.tensorboard:
            self._sinks.append(
                Mirror("TensorBoard", lambda: TensorBoardSink(Path(run_dir) / logger.tensorboard_dir, config))
            )
        if logger.wandb.key or logger.wandb.mode:
            self._sinks.append(Mirror("wandb", lambda: WandbSink(Path(run_dir), logger.wandb, config or {})))
        self._writer = PatientWriter(self.path)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one row. Mirrors get every `logging_steps`-th step, and every row that carries an evaluation."""
        values = {name: finite(value) for name, value in metrics.items() if name not in NOT_METRICS}
        self._writer.write({"step": int(step), "time": time.time(), **values})
        if step % self._every and not _has_evaluation(values):
            return
        present = {tag(name): value for name, value in values.items() if value is not None}
        for sink in self._sinks:
            sink.log(step, present)

    def text(self, step: int, texts: Mapping[str, str]) -> None:
        """Give the mirrors texts by tag, in Markdown. metrics.jsonl gets none."""
        for sink in self._sinks:
            sink.text(step, texts)

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
        for sink in self._sinks:
            sink.rollback(step)
        return removed

    def close(self) -> None:
        """Close the file and the mirrors."""
        self._writer.close()
        for sink in self._sinks:
            sink.close()

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


def _has_evaluation(row: Mapping[str, Any]) -> bool:
    """Return True if the row holds the figures of an evaluation. Such a row holds nothing else."""
    return any(name.startswith("eval/") for name in row)


def _is_row(row: dict[str, Any]) -> bool:
    step = row.get("step")
    numbers = (value for name, value in row.items() if name != "step")
    return type(step) is int and all(value is None or type(value) in (int, float) for value in numbers)
