"""Metrics: one flat dict per learner step -> metrics.jsonl, TensorBoard, wandb; and metrics.jsonl -> columns.

metrics.jsonl is the record that `report` reads; the other two are mirrors. A resume drops the rows of steps that were
rolled back. None of them ever ends training: what a disk or a server refuses is said once, tried again, and counted.
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
NOT_METRICS = ("step", "time")


class MetricsLog:
    """Where the loop writes its metrics; a context manager.

    `config` is what the mirrors show as the run's hyper-parameters. Raises ConfigError when a configured mirror is not
    installed.
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
        if step % self._every and not _of_evaluation(values):
            return
        present = {tag(name): value for name, value in values.items() if value is not None}
        for sink in self._sinks:
            sink.log(step, present)

    def text(self, step: int, texts: Mapping[str, str]) -> None:
        """Give the mirrors texts by tag, in Markdown; metrics.jsonl has none."""
        for sink in self._sinks:
            sink.text(step, texts)

    def truncate_after(self, step: int, evaluated: bool = True) -> int:
        """Forget steps > `step`, which a resume takes back; returns how many rows went. TensorBoard purges them too.
        Unless it is `evaluated`, the evaluation of `step` itself goes as well: it will be made again.

        Lines that are no rows go to metrics.jsonl.garbled. On a full disk the rows stay: new rows win over them."""
        self._writer.close()
        gone = 0
        try:
            rows, _ = set_aside(self.path, _is_row)
            kept = [row for row in rows if row["step"] <= (step if evaluated or not _of_evaluation(row) else step - 1)]
            replace_rows(self.path, kept)
            gone = len(rows) - len(kept)
        except OSError as e:
            log.warning(
                "%s cannot be rewritten (%s): rows of steps after %d stay until those steps are logged again.",
                self.path,
                e,
                step,
            )
        self._writer = PatientWriter(self.path)
        for sink in self._sinks:
            sink.rollback(step)
        return gone

    def close(self) -> None:
        self._writer.close()
        for sink in self._sinks:
            sink.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc) -> None:
        self.close()


def read(run_dir: Path) -> dict[str, list]:
    """Columns of metrics.jsonl, all of one length, in order of step; None where a step did not have the metric.

    Rows of one step are merged, the later value wins. {} when nothing was logged yet.
    """
    merged: dict[int, dict[str, Any]] = {}
    for row in read_rows(Path(run_dir) / FILE, _is_row):
        merged.setdefault(row["step"], {}).update(row)
    rows = [merged[step] for step in sorted(merged)]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _of_evaluation(row: Mapping[str, Any]) -> bool:
    """Whether it has an evaluation's figures; then it has nothing else."""
    return any(name.startswith("eval/") for name in row)


def _is_row(row: dict[str, Any]) -> bool:
    step = row.get("step")
    numbers = (value for name, value in row.items() if name != "step")
    return type(step) is int and all(value is None or type(value) in (int, float) for value in numbers)
