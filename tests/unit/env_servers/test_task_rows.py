"""Rows that a `make_tasks` has made are all written, or none of them."""

from __future__ import annotations

import json
import re
import sys
from datetime import date
from types import SimpleNamespace

import pytest

from env_servers.adapters.verifiers import make_tasks
from env_servers.task_rows import write_rows


def test_rows_are_written_one_a_line_and_counted(tmp_path, capsys):
    rows = [{"prompt": "é"}, {"prompt": "b", "meta": {"n": 1}}]
    write_rows(tmp_path / "rows.jsonl", iter(rows), ", each verified")
    assert [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()] == rows
    assert re.fullmatch(f"{tmp_path}/rows.jsonl: 2 .*, each verified\n", capsys.readouterr().out)


def test_a_row_that_cannot_be_encoded_leaves_the_file_as_it_was(tmp_path):
    out = tmp_path / "rows.jsonl"
    out.write_text("before")
    with pytest.raises(UnicodeEncodeError):
        write_rows(out, [{"prompt": "\ud800"}])
    assert out.read_text() == "before"


def test_a_data_set_whose_rows_are_no_json_ends_the_command_and_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    out = tmp_path / "rows.jsonl"
    out.write_text("before")
    examples = [{"prompt": "1 + 1", "info": {}}, {"prompt": "Which day?", "info": {"day": date(2026, 1, 1)}}]
    monkeypatch.setattr(make_tasks, "load", lambda args: SimpleNamespace(get_dataset=lambda n: examples))
    monkeypatch.setattr(sys, "argv", ["make_tasks", "days", "--out", str(out)])
    with pytest.raises(SystemExit, match=r": .* date .*JSON"):
        make_tasks.main()
    assert out.read_text() == "before"
