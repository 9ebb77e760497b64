"""Commands given a path or a server that cannot be what they need: one line, exit code 2."""

from __future__ import annotations

import errno
import io
import re
import subprocess
import sys

import pytest

from openrlhf_tir.cli import main


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "ledger.jsonl").write_text("")
    (tmp_path / "run" / "run.lock").write_text("")
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


def test_a_full_disk_behind_the_output_is_one_line(monkeypatch, capsys):
    with open("/dev/full", "wb") as full:
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(full))
        assert main(["recipes"]) == 3
        assert len(capsys.readouterr().err.splitlines()) == 1
        sys.stdout.close()  # as Python does at its end: the rest went nowhere


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.EACCES, 2), (errno.EROFS, 2), (errno.EISDIR, 2), (errno.EIO, 3), (errno.ESTALE, 3), (errno.ENOTCONN, 3)],
)
def test_a_file_that_the_system_refuses_is_named_in_one_line(number, code, here, monkeypatch, capsys):
    def refuse(run_dir):
        raise OSError(number, "refused", "run/report.html")

    monkeypatch.setattr("openrlhf_tir.observability.report.build.build_report", refuse)
    assert main(["report", "run"]) == code
    err = capsys.readouterr().err
    assert "run/report.html" in err and len(err.splitlines()) == 1


def test_closed_standard_streams_get_no_file_of_the_command(here):
    """What a command opens first would be descriptor 1, and what it starts would print into it."""
    code = "from openrlhf_tir.cli import command_line as c; c.open_standard_streams(); f = open('mine', 'w')"
    code += "; print('printed', file=f); assert f.fileno() > 2; __import__('os').system('echo stray')"
    shell = 'exec "$0" -c "$1" <&- >&- 2>&-'
    subprocess.run(["sh", "-c", shell, sys.executable, code], check=True)
    assert (here / "mine").read_text() == "printed\n"
