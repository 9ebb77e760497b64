"""summary.json: exactly the promised schema, refused otherwise; the table shows deltas in percentage points."""

import io
import json

import pytest
from pydantic import ValidationError
from rich.console import Console

from openrlhf_tir.errors import DataError
from openrlhf_tir.observability.report import summary
from openrlhf_tir.observability.report.summary import Durations, Scores, Summary


def a_summary(**changes):
    values = {
        "base": Scores(accuracy=0.35, code_ratio=0.29, greedy_accuracy=0.125),
        "trained": Scores(accuracy=0.95, code_ratio=0.99, greedy_accuracy=0.975),
        "steps": 60,
        "seconds": Durations(setup=120.0, cold_start=95.0, training=200.0, total=430.0),
        "peak_pss_gib": 7.5,
        "overlap_ratio": 0.9,
        "trained_tokens_per_s": 900.0,
        "seed": 42,
        "model": "/runs/quickstart/model",
    }
    return Summary(**{**values, **changes})


def test_the_file_has_exactly_the_promised_keys(tmp_path):
    written = json.loads(summary.write(tmp_path, a_summary()).read_text())
    scores = {"accuracy", "code_ratio", "greedy_accuracy"}
    assert set(written) == {
        "base", "trained", "steps", "seconds", "peak_pss_gib", "overlap_ratio", "trained_tokens_per_s", "seed", "model",
        "cycle",
    }  # fmt: skip
    assert set(written["base"]) == set(written["trained"]) == scores
    assert set(written["seconds"]) == {"setup", "cold_start", "training", "total"}


def test_what_is_written_is_read_back(tmp_path):
    assert summary.read(tmp_path) is None
    summary.write(tmp_path, a_summary())
    assert summary.read(tmp_path) == a_summary()


@pytest.mark.parametrize(
    "change", [{"overlap_ratio": 93.0}, {"trained_tokens_per_s": float("nan")}, {"steps": -1}, {"extra": 1}]
)
def test_values_that_cannot_be_are_refused(change):
    with pytest.raises(ValidationError):
        a_summary(**change)


def test_a_file_of_another_schema_is_refused_with_the_field_and_a_remedy(tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps({**a_summary().model_dump(), "seed": "x"}))
    with pytest.raises(DataError, match=r"summary\.json: seed\b"):
        summary.read(tmp_path)


def shown(value):
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(summary.table(value))
    return console.export_text()


def test_the_table_shows_the_change_in_percentage_points():
    text = shown(a_summary())
    row = next(line for line in text.splitlines() if " accuracy" in line and "greedy" not in line)
    assert "35.0 %" in row and "95.0 %" in row and "+60.0 pp" in row


def test_where_no_call_can_be_made_there_is_no_row_of_the_code_ratio(tmp_path):
    none = Scores(accuracy=0.3, greedy_accuracy=0.2)
    of_run = a_summary(base=none, trained=none)
    assert set(json.loads(summary.write(tmp_path, of_run).read_text())["base"]) == {"accuracy", "greedy_accuracy"}
    assert summary.read(tmp_path) == of_run
    assert [label for label, *_ in summary.rows(of_run)] == ["accuracy", "greedy accuracy"]
    assert "code ratio" not in shown(of_run) and "code ratio" in shown(a_summary())


def test_the_table_of_a_run_without_evaluation_has_dashes():
    assert "pp" not in shown(a_summary(base=None, trained=None))
