"""summary.json, the result of a run for programs to read, and the same result as a table for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, ValidationError, model_serializer

from ...errors import DataError
from ...machine.files import replace_text

if TYPE_CHECKING:
    from rich.table import Table

FILE = "summary.json"
"""Name of the file in the run directory."""
Fraction = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, protected_namespaces=())


class _OfModel(_Strict):
    """Scores of one model, written without those that it does not have."""

    @model_serializer(mode="wrap")
    def _without_absent_values(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in serialize(self).items() if value is not None and value != {}}


class EnvScores(_OfModel):
    """Held-out scores of one model on the problems of one environment.

    Attributes:
        accuracy: Share of sampled responses that are correct.
        code_ratio: Share of sampled responses that called the tool; None where no call can be made.
        calls: Calls per sampled response.
        greedy_accuracy: Share of problems whose greedy response is correct.
    """

    accuracy: Fraction
    code_ratio: Fraction | None = None
    calls: float = Field(ge=0)
    greedy_accuracy: Fraction


class Scores(_OfModel):
    """Held-out scores of one model.

    Attributes:
        accuracy: Share of sampled responses (at temperature eval.temperature) that are correct.
        code_ratio: Share of sampled responses that called the tool; left out of the file where no call can be made.
        greedy_accuracy: Share of problems whose greedy response is correct.
        envs: Scores by environment; left out of the file if the run has one environment.
    """

    accuracy: Fraction

    code_ratio: Fraction | None = None

    greedy_accuracy: Fraction
    envs: dict[str, EnvScores] = Field(default_factory=dict)


class Durations(_Strict):
    """Wall-clock durations in seconds. A phase that did not run took 0."""

    setup: Seconds = 0.0
    cold_start: Seconds = 0.0
    training: Seconds
    total: Seconds


class Cycle(_Strict):
    """Where the time of an update goes: the mean over the middle half of the updates, without the first two.

    Attributes:
        updates: Number of these updates.
        wall_s: Seconds of an update.
        learner_s: Seconds of each part on the learner's side, which add up to `wall_s`; parts without any are left out.
        engine_share: Share of each part on the engines' side, which add up to 1; {} if the engines do not measure it.
    """

    updates: int = Field(ge=1)
    wall_s: Seconds
    learner_s: dict[str, Seconds]
    engine_share: dict[str, Fraction]


class Summary(_Strict):
    """The result of a run.

    Attributes:
        base: Scores of the base model; None if no evaluation set is configured.
        trained: Scores of the trained model; None if no evaluation set is configured.
        steps: Number of learner steps.
        seconds: Durations of the phases.
        peak_pss_gib: Peak of the proportional memory (PSS), summed over all processes of the run.
        overlap_ratio: Share of learner-step time during which at least one engine request was decoding.
        trained_tokens_per_s: Trained completion tokens per second of training.
        seed: Seed of the run.
        model: Path of the Hugging Face export.
        cycle: Where the time of an update goes; None if no update was made.
    """

    base: Scores | None
    trained: Scores | None
    steps: int = Field(ge=0)
    seconds: Durations
    peak_pss_gib: float = Field(ge=0)
    overlap_ratio: Fraction
    trained_tokens_per_s: float = Field(ge=0)
    seed: int
    model: str
    cycle: Cycle | None = None


def write(run_dir: Path, summary: Summary) -> Path:
    """Write summary.json and return its path."""
    path = Path(run_dir) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, summary.model_dump_json(indent=2) + "\n")
    return path


def read(run_dir: Path) -> Summary | None:
    """Return the summary of a finished run; None if there is none yet.

    Raises:
        DataError: The file does not have the schema.
    """
    path = Path(run_dir) / FILE
    if not path.exists():
        return None
    try:
        return Summary.model_validate_json(path.read_text())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise DataError(
            f"{path}: {place}: {first['msg']}. Delete the file; the end of a run writes it again."
        ) from error


ROWS = (("accuracy", "accuracy"), ("code_ratio", "code ratio"), ("greedy_accuracy", "greedy accuracy"))
"""(attribute of the scores, label) of the table's rows."""


def table(summary: Summary) -> Table:
    """Return the scores of base and trained model with their change in percentage points, for a terminal."""
    from rich.table import Table

    out = Table(title=f"Held-out evaluation after {summary.steps} steps, seed {summary.seed}", title_justify="left")
    out.add_column("")
    for column in ("base", "trained", "change"):
        out.add_column(column, justify="right")
    for label, base, trained in rows(summary):
        out.add_row(label, percent(base), percent(trained), points(base, trained))
    return out


def rows(summary: Summary) -> list[tuple[str, float | None, float | None]]:
    """Return (label, base, trained) of the whole evaluation, then of each environment if there are several.

    The code ratio is left out where no call can be made.
    """
    base_envs = summary.base.envs if summary.base else {}
    trained_envs = summary.trained.envs if summary.trained else {}
    table_rows = _score_rows("", summary.base, summary.trained)
    for env in sorted(base_envs.keys() | trained_envs.keys()):
        table_rows += _score_rows(f"{env}: ", base_envs.get(env), trained_envs.get(env))
    return table_rows


def _score_rows(
    prefix: str, base: Scores | EnvScores | None, trained: Scores | EnvScores | None
) -> list[tuple[str, float | None, float | None]]:
    score_rows = [(prefix + label, getattr(base, name, None), getattr(trained, name, None)) for name, label in ROWS]
    measured = [row for row in score_rows if row[1:] != (None, None)]
    # Without any measurement the table keeps its rows, which then show dashes.
    return measured or score_rows


def percent(fraction: float | None) -> str:
    """Return a fraction as a percentage, "-" for None."""
    return "-" if fraction is None else f"{100 * fraction:.1f} %"


def points(base: float | None, trained: float | None) -> str:
    """Return the difference of two fractions in percentage points with its sign; "-" if one is None."""
    return "-" if base is None or trained is None else f"{100 * (trained - base):+.1f} pp"
