"""Rows written and read again: columns that only some rows have, and values that JSON does not know."""

from __future__ import annotations

import datetime
import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from openrlhf_tir.cli import main
from openrlhf_tir.config import Data
from openrlhf_tir.data.identity import row_id
from openrlhf_tir.data.prompts import problems
from tests.unit.data.test_data_prompts import jsonl


def data(*argv) -> int:
    return main(["data", *map(str, argv)])


def read(path):
    return [(p.input, p.label, p.env, p.meta) for p in problems(Data(prompt_dataset=str(path)))]


PLAIN = {"prompt": "1+1?", "label": "2"}
FULL = {"prompt": "2+2?", "label": "4", "env": "search", "datasource": "nq", "meta": {"kind": "easy"}}


def test_a_column_that_the_first_row_lacks_is_in_the_parquet_file_too(tmp_path):
    source = jsonl(tmp_path / "d.jsonl", [PLAIN, FULL])
    samples = jsonl(tmp_path / "s.jsonl", [{"question": row["prompt"], "correct": 1} for row in (PLAIN, FULL)])
    for out, *argv in (
        ("converted.parquet", "convert", source),
        ("selected.parquet", "select", source, "--samples", samples, "--pass-rate", 0, 1),
        ("clean.parquet", "decontaminate", source, "--against", jsonl(tmp_path / "e.jsonl", [PLAIN | {"prompt": "x"}])),
    ):
        assert data(*argv, "--out", tmp_path / out) == 0
        assert read(tmp_path / out) == read(source), out


def test_a_row_without_a_data_source_has_none_in_any_schema(tmp_path):
    """The joined column holds None there, which became a data source of that name."""
    pq.write_table(pa.Table.from_pylist([PLAIN | {"datasource": None}, FULL | {"env": None}]), tmp_path / "d.parquet")
    assert data("convert", tmp_path / "d.parquet", "--to", "verl", "--out", tmp_path / "v.jsonl") == 0
    rows = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()]
    assert [row["data_source"] for row in rows] == ["openrlhf_tir", "nq"]


def step(function: str, **arguments):
    call = {"type": "function", "function": {"name": function, "arguments": arguments}}
    return [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "done"},
    ]


def test_a_row_of_parquet_has_no_keys_that_only_other_rows_have(tmp_path):
    """A column has the keys of all its objects: calls would have arguments that nobody wrote, and the same problem
    another name than in JSONL."""
    rows = [
        {"prompt": step("buy", item="tea"), "label": "1", "meta": {"kind": "shop"}},
        {"prompt": step("look", where="here", deep=True), "label": "2", "meta": {"repo": "r"}},
        {"prompt": [{"role": "user", "content": "go"}], "label": "3", "meta": {}},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "d.parquet")
    plain = read(jsonl(tmp_path / "d.jsonl", rows))
    assert read(tmp_path / "d.parquet") == plain
    assert [row_id(given, label) for given, label, *_ in plain] == [row_id(r["prompt"], r["label"]) for r in rows]


def test_a_gold_answer_of_parquet_has_only_its_own_arguments(tmp_path):
    def row(**arguments):
        truth = [{"name": "f", "arguments": arguments}]
        return {"prompt": [{"role": "user", "content": "go"}], "reward_model": {"ground_truth": truth}}

    pq.write_table(pa.Table.from_pylist([row(a=1), row(b=2)]), tmp_path / "d.parquet")
    labels = [json.loads(label) for _, label, *_ in read(tmp_path / "d.parquet")]
    assert labels == [[{"name": "f", "arguments": {"a": 1}}], [{"name": "f", "arguments": {"b": 2}}]]


def test_rows_of_a_parquet_file_keep_its_columns_and_types(tmp_path):
    schema = pa.schema(
        [
            ("prompt", pa.string()),
            ("label", pa.string()),
            ("when", pa.timestamp("ms")),
            ("n", pa.int8()),
            ("facts", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ]
    )
    rows = [
        {"prompt": p, "label": "1", "when": datetime.datetime(2020, 1, 1), "n": 1, "facts": {"a": None, "b": None}}
        for p in ("a", "b")
    ]
    table = pa.Table.from_pylist(rows, schema=schema)
    pq.write_table(table, tmp_path / "d.parquet")
    samples = jsonl(tmp_path / "s.jsonl", [{"question": "a", "correct": 1}, {"question": "b", "correct": 0}])
    for rates, kept in (((1, 1), table.slice(0, 1)), ((0.4, 0.6), table.slice(0, 0))):
        out = tmp_path / "o.parquet"
        assert data("select", tmp_path / "d.parquet", "--samples", samples, "--pass-rate", *rates, "--out", out) == 0
        assert pq.read_table(out).equals(kept)


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("nan"), "score = nan.*JSON"),
        (datetime.date(2020, 1, 1), r"\bdate\b.*JSON"),
        (b"png", r"\bbytes\b.*JSON"),
    ],
)
def test_what_json_cannot_hold_is_a_mistake_that_leaves_no_file(tmp_path, capsys, value, said, suffix):
    """NaN is how pandas writes a missing number: the file was written, and could not be read again."""
    pq.write_table(pa.Table.from_pylist([PLAIN | {"score": value}]), tmp_path / "d.parquet")
    samples = jsonl(tmp_path / "s.jsonl", [{"question": "1+1?", "correct": 1}])
    select = ("select", tmp_path / "d.parquet", "--samples", samples, "--pass-rate", 0, 1, "--out")
    assert data(*select, tmp_path / f"o{suffix}") == 2
    err = capsys.readouterr().err
    assert re.search(said, err) and " 1 " in err and ".parquet" in err
    assert not (tmp_path / f"o{suffix}").exists()
    assert data(*select, tmp_path / "o.parquet") == 0


def test_a_lone_surrogate_goes_as_it_came_or_is_a_mistake(tmp_path, capsys):
    source = jsonl(tmp_path / "d.jsonl", [PLAIN | {"note": "\ud800"}])
    samples = jsonl(tmp_path / "s.jsonl", [{"question": "1+1?", "correct": 1}])
    select = ("select", source, "--samples", samples, "--pass-rate", 0, 1, "--out")
    assert data(*select, tmp_path / "o.jsonl") == 0
    assert json.loads((tmp_path / "o.jsonl").read_text()) == PLAIN | {"note": "\ud800"}
    capsys.readouterr()
    assert data(*select, tmp_path / "o.parquet") == 2
    assert re.search(r"'utf-8' .*\.jsonl ", capsys.readouterr().err)
