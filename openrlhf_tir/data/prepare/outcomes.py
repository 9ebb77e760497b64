"""Outcomes: what was sampled, by a run or an evaluation -> how often each row was answered rightly, by epoch.

    a run's directory    its trajectories/*.jsonl (logger.trajectories = 1), the groups that filters dropped included
    a JSONL file         one sample or one problem a line: {"row" or "prompt" or "question", "correct": true | 0..1 |
                         [...], "epoch": 0}

A line is of a row by its name in `row` (data/identity.py), else by its text. Samples that infrastructure lost say
nothing and are left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...config.paths import asked, local_path
from ...errors import ConfigError, DataError
from ...logs import trajectories
from ..fields import kind
from ..rows import read_rows
from .decontaminate import asked as question_of

HALF = 0.5
"""Above it a sample counts as right."""
TEXTS = ("question", "input", "prompt")


@dataclass(slots=True)
class Outcome:
    """What became of one row: its right and all its samples, by epoch."""

    right: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    samples: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, epoch: int, right: int, samples: int) -> None:
        self.right[epoch] += right
        self.samples[epoch] += samples

    @property
    def total(self) -> int:
        return sum(self.samples.values())

    @property
    def pass_rate(self) -> float:
        return sum(self.right.values()) / self.total

    def by_epoch(self) -> dict[int, float]:
        return {epoch: self.right[epoch] / n for epoch, n in sorted(self.samples.items())}


def read_outcomes(sources: list[str], tick: Any = lambda: None) -> dict[str, Outcome]:
    """A row's name or text -> its outcome. Raises ConfigError for a source that is not there, DataError for a line that
    says too little."""
    found: dict[str, Outcome] = {}
    for source in sources:
        path = local_path(source, "--samples")
        if asked(path, Path.is_dir, "--samples"):
            lines: Iterator[tuple[str, Mapping[str, Any]]] = ((str(path), row) for row in trajectories.read(path))
        elif asked(path, Path.is_file, "--samples"):
            lines = read_rows(str(path), "train")
        else:
            raise ConfigError(
                f"--samples {source} does not exist. Give the directory of a run with --logger.trajectories 1, or a"
                " JSONL file of samples."
            )
        before = len(found)
        any_line = False
        for where, line in lines:
            any_line = True
            tick()
            _add(found, where, line)
        if not any_line or (before == len(found) == 0):
            raise DataError(
                f"--samples {source} holds no sample that was judged."
                " A run keeps its samples with --logger.trajectories 1."
            )
    return found


def _add(found: dict[str, Outcome], where: str, line: Mapping[str, Any]) -> None:
    if line.get("failed"):
        return
    parts = line.get("parts")
    said = line.get("correct", parts.get("correct") if isinstance(parts, Mapping) else None)
    values = said if isinstance(said, list) else [said]
    if not values or not all(isinstance(v, bool | int | float) for v in values):
        raise DataError(
            f"{where}: correct is {kind(said)}, not true, false, a number, or a list of these."
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
        raise DataError(f"{where}: epoch is {kind(epoch)}, not a whole number.")
    found.setdefault(name, Outcome()).add(epoch, sum(v > HALF for v in values), len(values))
