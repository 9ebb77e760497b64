"""Metrics: one flat dict per learner step -> metrics.jsonl, TensorBoard, wandb; and metrics.jsonl -> columns.

metrics.jsonl is the record that `report` reads; the other two are mirrors. A resume drops the rows of steps that were rolled back.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from ..config import Logger
from .jsonl import JsonlWriter, finite, read_rows, replace_rows
from .sinks import Sink, TensorBoardSink, WandbSink

FILE = "metrics.jsonl"
NOT_METRICS = ("step", "time")


class MetricsLog:
    """Where the loop writes its metrics; a context manager.

    `config` is what wandb shows beside the run. Raises ConfigError when a configured mirror is not installed.
    """

    def __init__(self, run_dir: Path, logger: Logger, config: Mapping[str, Any] | None = None):
        self.path = Path(run_dir) / FILE
        self._every = logger.logging_steps
        self._sinks: list[Sink] = []
        if logger.tensorboard:
            self._sinks.append(TensorBoardSink(Path(run_dir) / "tensorboard"))
        if logger.wandb.key:
            self._sinks.append(WandbSink(Path(run_dir), logger.wandb, config or {}))
        self._writer = JsonlWriter(self.path)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one row. Mirrors get every `logging_steps`-th step, and every row that carries an evaluation."""
        values = {name: finite(value) for name, value in metrics.items() if name not in NOT_METRICS}
        self._writer.write({"step": int(step), "time": time.time(), **values})
        if step % self._every and not any(name.startswith("eval/") for name in values):
            return
        present = {name: value for name, value in values.items() if value is not None}
        for sink in self._sinks:
            sink.log(step, present)

    def truncate_after(self, step: int) -> int:
        """Forget steps > `step`, which a resume takes back; returns how many rows went. TensorBoard purges them too."""
        self._writer.close()
        rows = read_rows(self.path)
        kept = [row for row in rows if row["step"] <= step]
        replace_rows(self.path, kept)
        self._writer = JsonlWriter(self.path)
        for sink in self._sinks:
            sink.rollback(step)
        return len(rows) - len(kept)

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
    for row in read_rows(Path(run_dir) / FILE):
        merged.setdefault(row["step"], {}).update(row)
    rows = [merged[step] for step in sorted(merged)]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}
