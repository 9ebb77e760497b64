"""How often each row was answered correctly, by epoch, from the samples of a run or an evaluation.

    a run's directory    its trajectories/*.jsonl (logger.trajectories = 1), with the groups that filters dropped
    a JSONL file         one sample or one problem a line: {"row" or a text of TEXTS, "correct": true | 0..1 | [...],
                         "epoch": 0}

A line belongs to the row that it names in `row` (data/identity.py), else to the row of its text. Samples that
infrastructure lost are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...config.paths import local_path, query_path
from ...errors import ConfigError, DataError
from ...telemetry import trajectories
from ...types import CORRECT_ABOVE
from ..fields import kind
from ..rows import read_rows
from .decontaminate import question_of

TEXTS = ("question", "input", "prompt")
"""Columns of a sample that may hold the text of its row; the first that is there counts."""


@dataclass(slots=True)
class Outcome:
    """The right samples and all samples of one row, by epoch."""

    right: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    samples: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, epoch: int, right: int, samples: int) -> None:
        """Add samples of an epoch."""
        self.right[epoch] += right
        self.samples[epoch] += samples

    @property
    def total(self) -> int:
        """Number of samples."""
        return sum(self.samples.values())

    @property
    def pass_rate(self) -> float:
        """Share of right samples."""
        return sum(self.right.values()) / self.total

    def by_epoch(self) -> dict[int, float]:
        """Return the pass rate of each epoch."""
        return {epoch: self.right[epoch] / count for epoch, count in sorted(self.samples.items())}


def read_outcomes(sources: list[str], tick: Any = lambda: None) -> dict[str, Outcome]:
    """Return a row's name or text -> its outcome.

    Raises:
        ConfigError: A source does not exist.
        DataError: A line is incomplete.
    """
    outcomes: dict[str, Outcome] = {}
    for source in sources:
        path = local_path(source, "--samples")
        if query_path(path, Path.is_dir, "--samples"):
            lines: Iterator[tuple[str, Mapping[str, Any]]] = ((str(path), row) for row in trajectories.read(path))
        elif query_path(path, Path.is_file, "--samples"):
            lines = read_rows(str(path), "train")
        else:
            raise ConfigError(
                f"--samples {source} does not exist. Give the directory of a run with --logger.trajectories 1, or a"
                " JSONL file of samples."
            )
        previous = len(outcomes)
        any_line = False
        for where, line in lines:
            any_line = True
            tick()
            _add(outcomes, where, line)
        if not any_line or (previous == len(outcomes) == 0):
            raise DataError(
                f"--samples {source} holds no sample that was judged."
                " A run keeps its samples with --logger.trajectories 1."
            )
    return outcomes


def _add(outcomes: dict[str, Outcome], where: str, line: Mapping[str, Any]) -> None:
    if line.get("failed"):
        return
    parts = line.get("parts")
    correct = line.get("correct", parts.get("correct") if isinstance(parts, Mapping) else None)
    values = correct if isinstance(correct, list) else [correct]
    if not values or not all(isinstance(value, bool | int | float) for value in values):
        raise DataError(
            f"{where}: 'correct' is {kind(correct)}, not true, false, a number, or a list of these."
            " Give samples that were judged."
        )
    name = line.get("row") or next(
        (question_of(line[key]).strip() for key in TEXTS if isinstance(line.get(key), str | list)), ""
    )
    if not isinstance(name, str) or not name:
        raise DataError(
            f"{where} has neither 'row' nor one of {', '.join(TEXTS)}: it cannot be told which row it is of."
        )
    key = line.get("key")
    epoch = line.get("epoch", key[0] if isinstance(key, list) and key else 0)
    if not isinstance(epoch, int):
        raise DataError(f"{where}: 'epoch' is {kind(epoch)}, not a whole number.")
    outcomes.setdefault(name, Outcome()).add(epoch, sum(value > CORRECT_ABOVE for value in values), len(values))
