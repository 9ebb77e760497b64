"""Commands given a path or a server that cannot be what they need: one line, exit code 2."""

from __future__ import annotations

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
        ("reproduce zerotir --out file", "/file cannot be used as a directory to write in: File exists."),
        ("reproduce zerotir --out file/x", "/file/x cannot be used as a directory to write in: Not a directory."),
        ("reproduce zerotir --out empty --bases file", "cannot be used as a directory to write in: Not a directory."),
        ("eval --recipe quickstart_cpu --eval.dataset d.jsonl --items file", "file cannot be used as a directory"),
        ("control run --env a=server:80", "Environment URL 'server:80' has no scheme."),
        ("control run --env a=http://x:1,ftp://y", "Environment URL 'ftp://y'"),
        ("control run --env a=http://x:99999", "Environment URL 'http://x:99999'"),
        ("play run --step 0", "Argument --step: 0 is out of range; give 1 to"),
        ("play run --step 1 --limit -3", "Argument --limit: -3 is out of range; give 1 to"),
        ("check-env ftp://y", "Environment URL 'ftp://y'"),
    ],
)
def test_it_is_refused_in_one_line_before_anything_is_written(line, said, here, capsys):
    assert main(line.split()) == 2
    err = capsys.readouterr().err
    assert said in err and "Traceback" not in err
    assert not (here / "run" / "control.toml").exists() and not [*(here / "empty").glob("control*")]
