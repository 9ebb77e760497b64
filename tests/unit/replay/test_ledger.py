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


def test_the_audit_counts_what_a_resume_would_take_back_and_what_waits(tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl")
    a, b, c = issue(ledger, 1, 2, 3)
    ledger.ended("filtered", a, reason="zero_variance")
    ledger.committed(1, ledger.lines)
    ledger.ended("trained", b, step=1)
    ledger.ended("requeued", c, reason="timeout")
    report = audit(ledger.path)
    assert (report.provisional, report.waiting, report.open) == (1, [(0, 3)], [])
    issue(ledger, 3)
    report = audit(ledger.path)
    assert (report.waiting, report.open) == ([], [GroupKey(0, 3, 1)])


def test_the_audit_of_a_run_that_is_being_killed_leaves_out_half_a_line(tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl")
    issue(ledger, 1)
    ledger.close()
    with (tmp_path / "l.jsonl").open("a") as f:
        f.write('{"t": 1, "e": "trai')
    assert audit(tmp_path / "l.jsonl").open == [GroupKey(0, 1, 0)]


def test_an_end_that_the_pipeline_does_not_know_of_is_named(tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl")
    a, b = issue(ledger, 1, 2)
    ledger.check_open([a, b])
    with pytest.raises(ConservationError, match="lost: 0/2/0"):
        ledger.check_open([a])
    ledger.ended("filtered", a, reason="x")
    with pytest.raises(ConservationError, match="ended, yet in flight: 0/1/0"):
        ledger.check_open([a, b])


def test_the_audit_finds_a_prompt_trained_twice(tmp_path):
    path = tmp_path / "l.jsonl"
    path.write_text(
        '{"e": "issued", "k": [0, 5, 0]}\n{"e": "trained", "k": [0, 5, 0], "step": 0}\n'
        '{"e": "issued", "k": [0, 5, 1]}\n{"e": "trained", "k": [0, 5, 1], "step": 1}\n'
    )
    assert any("trained more than once" in e for e in audit(path).errors)


def test_a_finished_run_has_nothing_open_and_a_resume_that_goes_on_is_not_finished(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    a, _ = issue(ledger, 1, 2)
    ledger.ended("trained", a, step=0)
    ledger.committed(1, cut := ledger.lines)
    assert audit(ledger.path).errors == []  # it runs
    ledger.finished()
    report = audit(ledger.path)
    assert report.finished and report.errors == ["the run is finished, but 1 prompts were issued and never ended: 0/2/0"]
    assert audit_command(tmp_path) == 1
    ledger.rolled_back(cut, [])
    assert not audit(ledger.path).finished and audit_command(tmp_path) == 0


def audit_command(run_dir) -> int:
    from argparse import Namespace

    from openrlhf_tir.commands.audit import run

    return run(Namespace(run_dir=run_dir))
