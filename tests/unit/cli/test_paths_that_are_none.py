"""Commands given a path or a server that cannot be what they need: one line, exit code 2."""

from __future__ import annotations

import re

import pytest

from openrlhf_tir.cli import main


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "ledger.jsonl").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("reproduce zerotir --out file", "/file .*: File exists"),
        ("reproduce zerotir --out file/x", "/file/x .*: Not a directory"),
        ("reproduce zerotir --out empty --bases file", "/file.*: Not a directory"),
        ("eval --recipe quickstart_cpu --eval.dataset d.jsonl --items file", r"\bfile .*: File exists"),
        ("control run --env a=server:80", "'server:80'.*http://"),
        ("control run --env a=http://x:1,ftp://y", "'ftp://y'"),
        ("control run --env a=http://x:99999", "'http://x:99999'"),
        ("play run --step 0", "--step: 0 "),
        ("play run --step 1 --limit -3", "--limit: -3 "),
        ("check-env ftp://y", "'ftp://y'"),
    ],
)
def test_it_is_refused_in_one_line_before_anything_is_written(line, said, here, capsys):
    assert main(line.split()) == 2
    err = capsys.readouterr().err
    assert re.search(said, err) and len(err.splitlines()) == 1
    assert not (here / "run" / "control.toml").exists() and not [*(here / "empty").glob("control*")]
