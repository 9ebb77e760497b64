"""openrlhf-tir data with wrong arguments: one line, exit code 2, and no file of the user's is lost."""

from __future__ import annotations

import os
import re
import shlex

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from openrlhf_tir.cli import main
from tests.unit.data.test_data_prompts import jsonl

ROWS = [{"prompt": "What is 1+1?", "label": "2"}, {"prompt": "What is 2+1?", "label": "3"}]


def data(line: str) -> int:
    return main(["data", *shlex.split(line)])


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    jsonl(tmp_path / "rows.jsonl", ROWS)
    jsonl(tmp_path / "test.jsonl", ROWS[:1])
    jsonl(tmp_path / "judged.jsonl", [{"prompt": r["prompt"], "correct": i > 0} for i, r in enumerate(ROWS)])
    jsonl(tmp_path / "extra.jsonl", [{"id": "a", "ground_truth": []}])
    jsonl(tmp_path / "nameless.jsonl", [{"ground_truth": []}])
    (tmp_path / "set").mkdir()
    jsonl(tmp_path / "set" / "train.jsonl", ROWS)
    os.mkfifo(tmp_path / "pipe.jsonl")
    return tmp_path


@pytest.mark.parametrize(
    "line",
    [
        "decontaminate rows.jsonl --against test.jsonl --out clean.jsonl --report rows.jsonl",
        "decontaminate rows.jsonl --against test.jsonl --out clean.jsonl --report test.jsonl",
        "decontaminate rows.jsonl --against test.jsonl --out test.jsonl",
        "decontaminate rows.jsonl --against aime24=test.jsonl --out test.jsonl",
        "select rows.jsonl --samples judged.jsonl --pass-rate 0 1 --out judged.jsonl",
        "convert rows.jsonl --join extra.jsonl --out extra.jsonl",
        "convert set --out set/train.jsonl",
        "convert set --out set/../set/train.jsonl",
    ],
)
def test_no_file_that_is_read_is_written_over(line, here, capsys):
    before = {path: path.read_bytes() for path in here.rglob("*.jsonl") if path.is_file()}
    assert data(line) == 2
    assert ("--report" if "--report" in line else "--out") in capsys.readouterr().err
    assert {path: path.read_bytes() for path in here.rglob("*.jsonl") if path.is_file()} == before


@pytest.mark.parametrize("flag", ["--report clean.jsonl", "--report set/../clean.jsonl"])
def test_the_report_is_not_written_over_the_rows_that_stay(flag, here, capsys):
    assert data(f"decontaminate rows.jsonl --against test.jsonl --out clean.jsonl {flag}") == 2
    assert re.search(r"--out.*--report.*clean\.jsonl", capsys.readouterr().err)
    assert not (here / "clean.jsonl").exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("check ''", "''"),
        ("check nowhere.jsonl", "DATA"),
        ("convert '' --out o.jsonl", "''"),
        ("decontaminate rows.jsonl --against '' --out o.jsonl", "''"),
        ("convert rows.jsonl --out ''", r"--out \."),
        ("convert rows.jsonl --out pipe.jsonl", r"--out pipe\.jsonl"),
        ("convert rows.jsonl --join no.json --out o.jsonl", r"--join no\.json"),
        ("convert rows.jsonl --join set --out o.jsonl", "--join set"),
        ("convert rows.jsonl --join extra.jsonl --out o.jsonl", "1.*'id'"),
        (
            "convert rows.jsonl --join nameless.jsonl --on-bad-row skip --out o.jsonl",
            "0.*'id'",
        ),
        (
            "check rows.jsonl --row-schema xlm",
            ": bfcl_multi_turn, dapo, hammer, orz, question_answer, searchr1,",
        ),
        ("check rows.jsonl --bogus 1", "`openrlhf-tir data check`.*'--bogus'"),
        ("check rows.jsonl --input_key x", "'--input_key'.*--input-key"),
        (
            "select rows.jsonl --samples judged.jsonl --out o.jsonl --learning-impact nan",
            "--learning-impact: nan",
        ),
        (
            "select rows.jsonl --samples judged.jsonl --out o.jsonl --pass-rate -1 1",
            "--pass-rate: -1.*0.*1",
        ),
        (
            "select rows.jsonl --samples judged.jsonl --out o.jsonl --pass-rate 0 1 --min-samples 9",
            "9.*1.*--min-samples",
        ),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(line, said, here, capsys):
    assert data(line) == 2
    err = capsys.readouterr().err
    assert re.search(said, err) and "Traceback" not in err
    assert not (here / "o.jsonl").exists()


def test_data_without_rows_is_not_converted_into_a_file_that_no_run_accepts(here, capsys):
    (here / "none.jsonl").touch()
    assert data("convert none.jsonl --out o.jsonl") == 2
    assert "none.jsonl" in capsys.readouterr().err
    assert not (here / "o.jsonl").exists()


def test_skipping_every_row_is_no_success(here, capsys):
    """A run ends with this message too."""
    jsonl(here / "bad.jsonl", [1, 2])
    assert data("check bad.jsonl --on-bad-row skip") == 2
    assert re.search(r"2.*bad\.jsonl", capsys.readouterr().err)


def test_the_flags_that_messages_name_are_understood(here, capsys):
    jsonl(here / "other.jsonl", [{"text": "1+1?", "mark": "2"}])
    assert data("check other.jsonl") == 2
    assert "--data.input_key" in capsys.readouterr().err
    assert data("check other.jsonl --data.input_key text --data.label_key mark") == 0


def test_samples_may_be_parquet(here, capsys):
    pq.write_table(pa.Table.from_pylist([{"prompt": r["prompt"], "correct": True} for r in ROWS]), "judged.parquet")
    assert data("select rows.jsonl --samples judged.parquet --pass-rate 1 1 --out o.jsonl") == 0
    assert "2 of 2 rows in o.jsonl" in capsys.readouterr().out
