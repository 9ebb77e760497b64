"""Results: a finished run of a task -> accuracy by kind of problem, before and after."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from openrlhf_tir.telemetry import metrics

from .numbers import UNSEEN

if TYPE_CHECKING:
    from rich.table import Table

_COLUMN = re.compile(r"eval/kind/(?!all/)(?P<kind>.+)/(?P<figure>accuracy|greedy_accuracy)")
"""A column of one kind of problem; `all`, of every kind together, is none."""
FIGURES = {"sampled": "accuracy", "greedy": "greedy_accuracy"}


@dataclass(frozen=True)
class Evaluation:
    """Accuracy by kind of problem, of one model.

    Attributes:
        sampled: Kind of problem -> share of sampled responses that are right.
        greedy: Kind of problem -> share of greedy responses that are right.
    """

    sampled: dict[str, float]
    greedy: dict[str, float]

    def mean(self, figure: str, *, unseen: bool, unseen_kinds: Collection[str] = UNSEEN) -> float | None:
        """Return the mean over the kinds that were never trained, or over those that were; None where there is none.

        Every kind has as many rows, so this is the mean over rows. `unseen_kinds` are those of the task that were never
        trained.
        """
        of_kinds: dict[str, float] = getattr(self, figure)
        wanted = [value for kind, value in of_kinds.items() if (kind in unseen_kinds) == unseen]
        return fmean(wanted) if wanted else None


def evaluations(run_dir: Path) -> tuple[Evaluation | None, Evaluation | None]:
    """Return the evaluations before and after training; None for one that the run has not (yet) made."""
    columns = metrics.read(run_dir)
    found: dict[int, Evaluation] = {}
    for name, values in columns.items():
        match = _COLUMN.fullmatch(name)
        if match is None:
            continue
        for step, value in zip(columns["step"], values, strict=True):
            if value is not None:
                at = found.setdefault(step, Evaluation({}, {}))
                of_kinds = at.sampled if match["figure"] == FIGURES["sampled"] else at.greedy
                of_kinds[match["kind"]] = value
    steps = sorted(found)
    before = found.get(0)
    after = found[steps[-1]] if steps and steps[-1] > 0 else None
    return before, after


def evaluation_in(file: Path) -> Evaluation:
    """Return the evaluation that `openrlhf-tir eval --out FILE` wrote of one set of problems."""
    results = json.loads(file.read_text(encoding="utf-8"))
    by_kind = {
        figure: {kind: accuracy for kind, (accuracy, _) in results[figure]["by_kind"].items() if kind != "all"}
        for figure in FIGURES
    }
    return Evaluation(by_kind["sampled"], by_kind["greedy"])


def kinds_table(run_dir: Path, unseen_kinds: Collection[str]) -> Table:
    """Return accuracy by kind of problem before and after training, for a terminal."""
    from rich.table import Table
    from rich.text import Text

    before, after = evaluations(run_dir)
    table = Table(title="Held-out accuracy by kind of problem, in %", title_justify="left")
    table.add_column("")
    for column in ("sampled before", "after", "greedy before", "after"):
        table.add_column(column, justify="right")
    kinds = sorted(
        {*(before.sampled if before else ()), *(after.sampled if after else ())}, key=lambda k: k in unseen_kinds
    )
    for kind in kinds:
        values = [_of(at, figure, kind) for figure in FIGURES for at in (before, after)]
        table.add_row(Text(f"{kind} (never trained)" if kind in unseen_kinds else kind), *map(_percent, values))
    for label, unseen in (("trained kinds", False), ("kinds never trained", True)):
        values = [
            at.mean(figure, unseen=unseen, unseen_kinds=unseen_kinds) if at else None
            for figure in FIGURES
            for at in (before, after)
        ]
        table.add_row(f"[bold]{label}", *map(_percent, values))
    return table


def _of(evaluation: Evaluation | None, figure: str, kind: str) -> float | None:
    of_kinds: dict[str, float] = getattr(evaluation, figure) if evaluation else {}
    return of_kinds.get(kind)


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.0f}"
