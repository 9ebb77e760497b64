"""The ledger: every prompt ends once, roll-backs take back what a crash lost, the audit finds what was broken."""

import json
import os
import random
from dataclasses import asdict

import pytest

from openrlhf_tir.errors import CheckpointDamaged, ConservationError, PipelineError
from openrlhf_tir.pipeline.ledger.audit import AuditCode, audit
from openrlhf_tir.pipeline.ledger.ledger import Ledger
from openrlhf_tir.pipeline.ledger.lines import BEGINNING, Mark, compare, seal
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
    with pytest.raises(ConservationError, match="0/7/0"):
        ledger.ended("filtered", key, reason="x")


def test_trained_is_provisional_until_its_checkpoint_commits(tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl")
    a, b = issue(ledger, 1, 2)
    ledger.ended("trained", a, step=0)
    cut = ledger.mark()
    ledger.ended("trained", b, step=1)
    ledger.committed(1, cut.lines)
    report = audit(ledger.path)
    assert report.trained == [(0, 1), (0, 2)]
    assert report.committed_trained == [(0, 1)]


def test_a_resume_takes_back_what_came_after_the_cut_and_issues_it_again(tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl")
    a, b = issue(ledger, 1, 2)
    ledger.ended("trained", a, step=0)
    cut = ledger.mark()
    ledger.committed(1, cut.lines)
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
    assert again.lines == 2  # the first says whose it is
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
    with pytest.raises(ConservationError, match="0/2/0"):
        ledger.check_open([a])
    ledger.ended("filtered", a, reason="x")
    with pytest.raises(ConservationError, match="0/1/0"):
        ledger.check_open([a, b])


def write(path, *rows) -> None:
    """A ledger with whole checksums, whatever it says."""
    check, out = 0, b""
    for row in ({"e": "ledger", "format": 2, "run": "r"}, *rows):
        line, check = seal(json.dumps(row), check)
        out += line
    path.write_bytes(out)


def test_the_audit_finds_a_prompt_trained_twice(tmp_path):
    path = tmp_path / "l.jsonl"
    write(
        path,
        {"e": "issued", "k": [0, 5, 0]},
        {"e": "trained", "k": [0, 5, 0], "step": 0},
        {"e": "issued", "k": [0, 5, 1]},
        {"e": "trained", "k": [0, 5, 1], "step": 1},
    )
    assert [(error.code, error.line) for error in audit(path).errors] == [
        (AuditCode.ISSUED_AGAIN, 4),
        (AuditCode.TRAINED_AGAIN, 5),
    ]


def test_open_prompts_are_an_error_of_a_finished_run_only(tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl")
    a, b = issue(ledger, 1, 2)
    ledger.ended("trained", a, step=1)
    ledger.committed(1, ledger.lines)
    report = audit(ledger.path)
    assert (report.errors, report.open, report.finished) == ([], [b], False)
    ledger.finished()
    (error,) = audit(ledger.path).errors
    assert error.code == AuditCode.LOST
    assert "0/2/0" in error.message


def test_a_finished_run_that_goes_on_is_not_finished(tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl")
    ledger.committed(1, ledger.lines)
    cut = ledger.mark()
    ledger.finished()
    ledger.rolled_back(cut, [])
    issue(ledger, 3)
    report = audit(ledger.path)
    assert (report.errors, report.finished) == ([], False)


def grown(path, prompts=12):
    """A ledger of trained prompts with one that is open: (its mark, its bytes)."""
    ledger = Ledger(path)
    for key in issue(ledger, *range(prompts)):
        ledger.ended("trained", key, step=0)
    issue(ledger, 999)
    cut = ledger.mark()
    ledger.close()
    return cut, path.read_bytes()


def damages(raw: bytes):
    """(name, bytes): bytes of every fifth line changed, cut in steps of 97, every line deleted, doubled, swapped."""
    lines = raw.splitlines(keepends=True)
    for i in range(0, len(lines), 5):
        start = len(b"".join(lines[:i]))
        for at in range(start, start + len(lines[i])):
            yield f"byte {at} flipped", raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
    for n in range(0, len(raw), 97):
        yield f"cut to {n}", raw[:n]
    for i in range(len(lines)):
        yield f"line {i} deleted", b"".join(lines[:i] + lines[i + 1 :])
        yield f"line {i} doubled", b"".join([*lines[:i], lines[i], *lines[i:]])
        yield f"line {i} garbled", b"".join([*lines[:i], b"\xff" * (len(lines[i]) - 1) + b"\n", *lines[i + 1 :]])
    for i in range(len(lines) - 1):
        yield f"lines {i}, {i + 1} swapped", b"".join([*lines[:i], lines[i + 1], lines[i], *lines[i + 2 :]])


def refusal(path, cut) -> str:
    try:
        compare(path, cut)
    except CheckpointDamaged as e:
        return str(e)
    return ""


def test_no_damage_before_the_mark_passes_a_resume_unseen(tmp_path):
    path = tmp_path / "l.jsonl"
    cut, raw = grown(path)
    compare(path, cut)
    for name, damaged in damages(raw):
        path.write_bytes(damaged)
        if damaged.startswith(raw):
            compare(path, cut)  # something was appended
        else:
            assert str(path) in refusal(path, cut), name
    path.unlink()
    with pytest.raises(CheckpointDamaged, match=r"l\.jsonl"):
        compare(path, cut)


@pytest.mark.slow
def test_no_damage_but_the_loss_of_the_last_lines_passes_the_audit_unseen(tmp_path):
    """The loss of whole last lines looks like a run that was killed earlier; then prompts are open."""
    path = tmp_path / "l.jsonl"
    _, raw = grown(path)
    for name, damaged in damages(raw):
        if name.startswith("cut to") or raw.startswith(damaged[:-1]):  # also where the last line lost its newline
            continue
        path.write_bytes(damaged)
        assert audit(path).errors, name


def test_a_mark_names_the_line_that_was_changed(tmp_path):
    path = tmp_path / "l.jsonl"
    cut, raw = grown(path)
    path.write_bytes(raw.replace(b'"k": [0, 7, 0]', b'"k": [0, 8, 0]', 1))
    with pytest.raises(CheckpointDamaged, match=r"l\.jsonl .* 9,") as refused:
        compare(path, cut)
    assert refused.value.code == "file_changed"


def test_the_ledger_of_another_run_is_named(tmp_path):
    cut, _ = grown(tmp_path / "a.jsonl")
    grown(tmp_path / "b.jsonl")
    with pytest.raises(CheckpointDamaged, match=cut.run) as refused:
        compare(tmp_path / "b.jsonl", cut)
    assert refused.value.code == "resume"


def test_damage_after_the_cut_is_taken_back_with_the_rest_and_counted(tmp_path):
    path = tmp_path / "l.jsonl"
    cut, _ = grown(path)
    ledger = Ledger(path)
    ledger.rolled_back(cut, [GroupKey(0, 999, 0)])
    issue(ledger, 50, 51)
    ledger.close()
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b'"k": [0, 50, 0]', b'"k": [0, 5\xff, 0]'))
    again = Ledger(path)
    assert again.rolled_back(cut, [GroupKey(0, 999, 0)]) == 1
    again.ended("requeued", GroupKey(0, 999, 0), reason="resume")
    assert audit(path).errors == []
    assert again.next_attempt(0, 51) == 1 and again.next_attempt(0, 999) == 1


def test_memory_holds_what_is_open_or_came_after_the_cut_only(tmp_path):
    path = tmp_path / "l.jsonl"
    ledger = Ledger(path)
    for prompt in range(500):
        (key,) = issue(ledger, prompt)
        ledger.ended("trained", key, step=0)
    (waits,) = issue(ledger, 500)
    ledger.ended("requeued", waits, reason="timeout")
    assert ledger._attempts == {(0, 500): 0}
    cut = Mark.of_json(json.loads(json.dumps(asdict(ledger.mark()))))
    issue(ledger, 501)
    ledger.close()
    again = Ledger(path)
    again.rolled_back(cut, [])
    assert again._attempts == {(0, 500): 0, (0, 501): 0}


def test_a_ledger_that_cannot_be_written_ends_the_run_by_name(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path / "l.jsonl")

    def full(fd, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("openrlhf_tir.pipeline.ledger.ledger.os.write", full)
    with pytest.raises(PipelineError, match=r"l\.jsonl .*No space left on device.*--resume"):
        issue(ledger, 1)


def test_a_ledger_of_an_earlier_version_and_an_empty_one_are_said(tmp_path):
    path = tmp_path / "l.jsonl"
    path.write_text('{"e": "issued", "k": [0, 5, 0]}\n')
    assert audit(path).errors[0].code == AuditCode.NO_HEADER
    path.write_text("")
    assert [error.code for error in audit(path).errors] == [AuditCode.EMPTY]


def test_no_mutation_of_a_ledger_is_a_traceback(tmp_path):
    """Spliced, overwritten and repeated pieces, and JSON of other shapes: the audit answers in sentences, and a run can
    open and go on from it."""
    path = tmp_path / "l.jsonl"
    _, raw = grown(path)
    rng = random.Random(0)
    shapes = [
        '{"e": "rolled_back", "upto": -3}',
        '{"e": "rolled_back", "upto": 1e9}',
        '{"e": "issued"}',
        '{"e": "trained", "k": [1e3, 0, 0]}',
        "null",
    ]
    others = [
        f"{shape}\n".encode()
        for shape in [*shapes, '{"e": [1]}', '{"e": "committed"}', '{"e": "rolled_back", "upto": 999999}']
    ]
    for _ in range(150):
        mutated = bytearray(raw)
        for _ in range(rng.randint(1, 4)):
            at, length = rng.randrange(len(mutated)), rng.randint(0, 40)
            mutated[at : at + length] = rng.choice([rng.randbytes(length), mutated[:length], b"\n", *others])
        path.write_bytes(mutated)
        assert all(error.code in AuditCode for error in audit(path).errors)
        ledger = Ledger(path)
        ledger.rolled_back(BEGINNING, [])
        issue(ledger, 3)
        ledger.close()
        assert audit(path).open[-1][:2] == (0, 3)


class FullDisk:
    """`fsync` refuses while `full`; of the module that the ledger asks."""

    def __init__(self, monkeypatch) -> None:
        self.full, real = True, os.fsync
        monkeypatch.setattr(
            "openrlhf_tir.pipeline.ledger.ledger.os.fsync", lambda fd: self.refuse() if self.full else real(fd)
        )

    def refuse(self) -> None:
        raise OSError(28, "No space left on device")


def test_a_disk_that_refuses_the_last_lines_ends_neither_the_run_nor_hides_what_did(tmp_path, monkeypatch, caplog):
    """`finished` and `close` come when the training is done, or has failed by something that must be told."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    FullDisk(monkeypatch)
    ledger.finished()
    fd = ledger._fd
    ledger.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    first, second = (record.getMessage() for record in caplog.records)
    assert "ledger.jsonl" in first
    assert "No space left" in first
    assert second == first


def test_a_resume_that_cannot_be_entered_is_refused_by_name_with_what_is_free(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    FullDisk(monkeypatch)
    with pytest.raises(PipelineError, match=r"ledger.jsonl .*No space left on device.*--resume"):
        ledger.rolled_back(BEGINNING, [])


def test_a_ledger_that_cannot_be_opened_is_named(tmp_path):
    (tmp_path / "ledger.jsonl").mkdir()
    with pytest.raises(PipelineError, match=r"ledger.jsonl .*Is a directory"):
        Ledger(tmp_path / "ledger.jsonl")


def test_going_back_to_the_beginning_reads_no_line_and_uses_no_attempt_number_again(tmp_path, monkeypatch):
    """A restart before the first checkpoint, maybe days into the run. Later roll-backs, to a mark after it too, keep
    the numbers apart."""
    path, seen = tmp_path / "ledger.jsonl", set()

    def issue(ledger: Ledger, prompt: int) -> GroupKey:
        key = GroupKey(0, prompt, ledger.next_attempt(0, prompt))
        assert key not in seen
        seen.add(key)
        ledger.issued(key, 0)
        return key

    first = Ledger(path)
    for prompt in range(3):
        first.ended("requeued", issue(first, prompt), reason="timeout")
        issue(first, prompt)
    first.close()

    monkeypatch.setattr("openrlhf_tir.pipeline.ledger.ledger.read_lines", None)
    second = Ledger(path)
    second.rolled_back(BEGINNING, [])
    second.ended("trained", issue(second, 0), step=1)
    mark = Mark.of_json(json.loads(json.dumps(asdict(second.mark()))))
    second.close()
    monkeypatch.undo()

    third = Ledger(path)
    third.rolled_back(mark, [])
    for prompt in (1, 2):
        third.ended("trained", issue(third, prompt), step=2)
    third.committed(2, third.lines)
    third.close()
    report = audit(path)
    assert report.errors == report.open == [] and list(report.trained) == [(0, 0), (0, 1), (0, 2)]


def test_a_run_that_had_not_begun_goes_back_to_the_beginning_with_the_first_attempt(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.rolled_back(BEGINNING, [])
    assert ledger.next_attempt(0, 5) == 0
