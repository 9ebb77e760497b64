"""`openrlhf-tir audit`: its exit code and the errors that it prints, for every kind of ledger."""

import pytest

from openrlhf_tir.cli import main
from openrlhf_tir.pipeline.ledger.ledger import Ledger
from openrlhf_tir.telemetry.lost import put_on_record
from openrlhf_tir.types import GroupKey


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for prompt in range(3):
        ledger.issued(GroupKey(0, prompt), version=0)
    ledger.ended("trained", GroupKey(0, 0), step=0)
    ledger.ended("filtered", GroupKey(0, 1), reason="x")
    ledger.committed(1, ledger.lines)
    return ledger


def test_an_open_prompt_fails_the_audit_of_a_finished_run_only(ledger, tmp_path, capsys):
    assert main(["audit", str(tmp_path)]) == 0
    assert "ERROR" not in capsys.readouterr().out
    ledger.finished()
    assert main(["audit", str(tmp_path)]) == 1
    (error,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("ERROR: "))
    assert "0/2/0" in error


def test_a_finished_run_with_every_prompt_ended_passes(ledger, tmp_path, capsys):
    ledger.ended("requeued", GroupKey(0, 2), reason="end_of_run")
    ledger.finished()
    assert main(["audit", str(tmp_path)]) == 0
    assert "ERROR" not in capsys.readouterr().out


def test_lost_processes_are_listed_and_are_no_error(ledger, tmp_path, capsys):
    put_on_record(tmp_path, "learner-rank-1", "its process died", [])
    assert main(["audit", str(tmp_path)]) == 0
    assert "learner-rank-1" in capsys.readouterr().out


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\n",
        b"[]\n",
        b'{"e": 1}\n',
        b'{"e": "issued", "k": [0, 1]}\n',
        b'{"e": "issued", "k": [0, -1, 0]}\n',
    ],
)
def test_what_is_no_ledger_is_an_error_and_no_traceback(content, tmp_path, capsys):
    (tmp_path / "ledger.jsonl").write_bytes(content)
    assert main(["audit", str(tmp_path)]) == 1
    assert "ERROR: " in capsys.readouterr().out
