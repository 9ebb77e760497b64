"""The ledger: every prompt ends once, roll-backs take back what a crash lost, and the audit finds what was broken on purpose."""

import pytest

from openrlhf_tir.errors import ConservationError
from openrlhf_tir.replay.ledger import Ledger, audit
from openrlhf_tir.types import GroupKey


def issue(ledger, *prompts):
    keys = [GroupKey(0, p, ledger.next_attempt(0, p)) for p in prompts]
    for k in keys:
        ledger.issued(k, version=0)
    return keys


def test_a_prompt_that_ends_twice_is_refused(tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl")
    (key,) = issue(ledger, 7)
    ledger.ended("trained", key, step=0)
    with pytest.raises(ConservationError, match="0/7/0 ended as 'filtered' but is not open"):
        ledger.ended("filtered", key, reason="x")


def test_trained_is_provisional_until_its_checkpoint_commits(tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl")
    a, b = issue(ledger, 1, 2)
    ledger.ended("trained", a, step=0)
    cut = ledger.lines
    ledger.ended("trained", b, step=1)
    ledger.committed(1, cut)
    report = audit(ledger.path)
    assert report.trained == [(0, 1), (0, 2)]
    assert report.committed_trained == [(0, 1)]


def test_a_resume_takes_back_what_came_after_the_cut_and_issues_it_again(tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl")
    a, b = issue(ledger, 1, 2)
    ledger.ended("trained", a, step=0)
    cut = ledger.lines
    ledger.committed(1, cut)
    ledger.ended("trained", b, step=1)
    ledger.close()
    again = Ledger(tmp_path / "l.jsonl")
    again.rolled_back(cut, [b])
    again.ended("requeued", b, reason="resume")
    (c,) = issue(again, 2)
    assert c == GroupKey(0, 2, 1)
    again.ended("trained", c, step=1)
    report = audit(again.path)
    assert report.errors == [] and report.trained == [(0, 1), (0, 2)] and report.open == [] and report.rollbacks == 1


def test_a_half_written_last_line_is_cut_off(tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl")
    issue(ledger, 1)
    ledger.close()
    with (tmp_path / "l.jsonl").open("a") as f:
        f.write('{"t": 1, "e": "trai')
    again = Ledger(tmp_path / "l.jsonl")
    assert again.lines == 1
    assert audit(again.path).open == [GroupKey(0, 1, 0)]


def test_the_audit_finds_a_prompt_trained_twice(tmp_path):
    path = tmp_path / "l.jsonl"
    path.write_text(
        '{"e": "issued", "k": [0, 5, 0]}\n{"e": "trained", "k": [0, 5, 0], "step": 0}\n'
        '{"e": "issued", "k": [0, 5, 1]}\n{"e": "trained", "k": [0, 5, 1], "step": 1}\n'
    )
    assert any("trained more than once" in e for e in audit(path).errors)
