"""summary.json: what a run came to, for machines; and its table, for people."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, ValidationError, model_serializer

from ..errors import DataError

if TYPE_CHECKING:
    from rich.table import Table

FILE = "summary.json"
Fraction = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, protected_namespaces=())


class EnvScores(_Strict):
    """Held-out evaluation of one model on the problems of one environment."""

    accuracy: Fraction
    code_ratio: Fraction | None = None
    calls: float = Field(ge=0, description="calls per sampled response")
    greedy_accuracy: Fraction

    @model_serializer(mode="wrap")
    def _without_nothing(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in serialize(self).items() if value is not None}


class Scores(_Strict):
    """Held-out evaluation of one model; fractions 0..1."""

    accuracy: Fraction
    """Share of sampled responses (temperature eval.temperature) that are correct."""
    code_ratio: Fraction | None = None
    """Share of sampled responses that called the tool; not written where no call can be made."""
    greedy_accuracy: Fraction
    """Share of problems whose greedy response is correct."""

    envs: dict[str, EnvScores] = Field(default_factory=dict)
    """Environment -> its own scores, where there are several; not written where there is one only."""

    @model_serializer(mode="wrap")
    def _without_nothing(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in serialize(self).items() if value is not None and value != {}}


class Durations(_Strict):
    """Wall-clock seconds. A phase that did not run took 0."""

    setup: Seconds = 0.0
    cold_start: Seconds = 0.0
    training: Seconds
    total: Seconds


class Summary(_Strict):
    """`base` and `trained` are null when no evaluation set is configured."""

    base: Scores | None
    trained: Scores | None
    steps: int = Field(ge=0)
    seconds: Durations
    peak_pss_gib: float = Field(ge=0, description="peak of the sum of PSS over all processes of the run")
    overlap_ratio: Fraction = Field(
        description="share of learner-step time during which at least one engine request was decoding"
    )
    trained_tokens_per_s: float = Field(ge=0, description="trained completion tokens / seconds of training")
    seed: int
    model: str = Field(description="path of the HF export")


def write(run_dir: Path, summary: Summary) -> Path:
    """Write summary.json by an atomic rename; returns its path."""
    path = Path(run_dir) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(FILE + ".tmp")
    temporary.write_text(summary.model_dump_json(indent=2) + "\n")
    os.replace(temporary, path)
    return path


def read(run_dir: Path) -> Summary | None:
    """The summary of a finished run; None when there is none yet. DataError when the file does not have the schema."""
    path = Path(run_dir) / FILE
    if not path.exists():
        return None
    try:
        return Summary.model_validate_json(path.read_text())
    except ValidationError as fault:
        first = fault.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise DataError(
            f"{path}: {where}: {first['msg']}. Delete the file; the end of a run writes it again."
        ) from fault


ROWS = (("accuracy", "accuracy"), ("code_ratio", "code ratio"), ("greedy_accuracy", "greedy accuracy"))


def table(summary: Summary) -> Table:
    """Base vs trained with deltas in percentage points, for a terminal."""
    from rich.table import Table

    out = Table(title=f"Held-out evaluation after {summary.steps} steps, seed {summary.seed}", title_justify="left")
    out.add_column("")
    for column in ("base", "trained", "change"):
        out.add_column(column, justify="right")
    for label, base, trained in rows(summary):
        out.add_row(label, percent(base), percent(trained), points(base, trained))
    return out


def rows(summary: Summary) -> list[tuple[str, float | None, float | None]]:
    """(what, base, trained) of the whole and of each environment of several; without a code ratio where no call can be
    made."""
    of = (summary.base, summary.trained)
    envs = [scores.envs if scores else {} for scores in of]
    found = [_figures("", *of)] + [
        _figures(f"{env}: ", *(e.get(env) for e in envs)) for env in sorted({*envs[0], *envs[1]})
    ]
    return [row for some in found for row in some]


def _figures(
    of: str, base: Scores | EnvScores | None, trained: Scores | EnvScores | None
) -> list[tuple[str, float | None, float | None]]:
    found = [(of + label, getattr(base, name, None), getattr(trained, name, None)) for name, label in ROWS]
    known = [row for row in found if row[1:] != (None, None)]
    return known or found


def percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.1f} %"


def points(base: float | None, trained: float | None) -> str:
    """The difference in percentage points, with its sign."""
    return "-" if base is None or trained is None else f"{100 * (trained - base):+.1f} pp"
