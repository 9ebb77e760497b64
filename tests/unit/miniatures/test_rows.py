"""Files of rows are there as a whole or not at all: a later start takes what it finds."""

from __future__ import annotations

import json

import pytest

from miniatures.lookup import write_files
from miniatures.rows import write_jsonl


def test_rows_of_which_one_is_no_json_leave_the_file_as_it_was(tmp_path):
    path = tmp_path / "data" / "rows.jsonl"
    write_jsonl([{"id": 1}], path)
    with pytest.raises(TypeError):
        write_jsonl([{"id": 2}, {"id": object()}], path)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"id": 1}]


def test_a_writer_that_is_killed_leaves_no_part_of_a_file(tmp_path, monkeypatch):
    def killed(*paths):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_jsonl([{"id": 1}], tmp_path / "rows.jsonl")
    with pytest.raises(KeyboardInterrupt):
        write_files(tmp_path, seed=0)
    assert not list(tmp_path.glob("*.jsonl"))
