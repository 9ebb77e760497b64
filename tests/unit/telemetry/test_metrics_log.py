"""metrics.jsonl: what goes in comes out in columns, a resume forgets rolled-back steps, a torn line is no fault."""

import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from openrlhf_tir.config import Logger
from openrlhf_tir.telemetry import metrics
from openrlhf_tir.telemetry.jsonl import PatientWriter
from openrlhf_tir.telemetry.metrics import MetricsLog

PLAIN = Logger(tensorboard_dir=None)


def test_columns_have_one_length_and_none_where_a_step_lacks_the_metric(tmp_path):
    with MetricsLog(tmp_path, PLAIN) as log:
        log.log(1, {"loss": 0.5})
        log.log(2, {"loss": 0.25, "drops/zero_variance": 3})
    columns = metrics.read(tmp_path)
    assert columns["step"] == [1, 2]
    assert columns["loss"] == [0.5, 0.25]
    assert columns["drops/zero_variance"] == [None, 3.0]


def test_a_row_is_readable_before_the_log_is_closed(tmp_path):
    log = MetricsLog(tmp_path, PLAIN)
    log.log(1, {"loss": 0.5})
    assert metrics.read(tmp_path)["loss"] == [0.5]
    log.close()


def test_rows_of_one_step_are_merged_and_the_later_value_wins(tmp_path):
    with MetricsLog(tmp_path, PLAIN) as log:
        log.log(4, {"loss": 1.0, "lr": 0.1})
        log.log(4, {"eval/accuracy": 0.75, "lr": 0.2})
    columns = metrics.read(tmp_path)
    assert (columns["step"], columns["loss"], columns["eval/accuracy"], columns["lr"]) == ([4], [1.0], [0.75], [0.2])


def test_nan_and_infinity_become_null_so_that_every_json_reader_reads_the_file(tmp_path):
    with MetricsLog(tmp_path, PLAIN) as log:
        log.log(1, {"ess": float("nan"), "kl_rollout": float("inf"), "loss": 1.0})
    assert metrics.read(tmp_path)["ess"] == [None]
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()


def test_truncate_after_drops_the_rows_of_rolled_back_steps_only(tmp_path):
    with MetricsLog(tmp_path, PLAIN) as log:
        for step in range(1, 6):
            log.log(step, {"loss": float(step)})
    with MetricsLog(tmp_path, PLAIN) as log:
        assert log.truncate_after(3) == 2
        log.log(4, {"loss": 40.0})
    assert metrics.read(tmp_path)["loss"] == [1.0, 2.0, 3.0, 40.0]


def test_an_evaluation_that_is_made_again_takes_the_row_of_the_one_before(tmp_path):
    """Of version 2: recorded after step 3, and made again by a resume from version 2. That of version 1 stays."""
    with MetricsLog(tmp_path, PLAIN) as log:
        for step, row in ((1, "loss"), (1, "eval/accuracy"), (2, "loss"), (3, "loss"), (2, "eval/accuracy")):
            log.log(step, {row: float(step)})
        assert log.truncate_after(2, evaluated=False) == 2
        log.log(2, {"eval/accuracy": 0.5})
    found = metrics.read(tmp_path)
    assert found["loss"] == [1.0, 2.0] and found["eval/accuracy"] == [1.0, 0.5]


def test_a_line_torn_by_a_kill_is_ignored_and_cut_before_the_next_row(tmp_path):
    with MetricsLog(tmp_path, PLAIN) as log:
        log.log(1, {"loss": 1.0})
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 2, "lo')
    assert metrics.read(tmp_path)["step"] == [1]
    with MetricsLog(tmp_path, PLAIN) as log:
        log.log(2, {"loss": 2.0})
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]


def test_garbled_lines_are_logged_when_read_and_set_aside_by_a_resume(tmp_path, caplog):
    """Text that is not JSON, bytes that are not UTF-8, JSON of another shape: none of the four lines ends a run."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "loss": 1.0}\nnot json\n\xff\xfe\n[3]\n{"loss": 2.0}\n{"step": 2, "loss": 2.0}\n')
    assert metrics.read(tmp_path)["loss"] == [1.0, 2.0]
    (warning,) = caplog.records
    assert re.search(r"metrics\.jsonl:2 .*b'not json.*\b3\b", warning.getMessage())
    with MetricsLog(tmp_path, PLAIN) as log:
        assert log.truncate_after(1) == 1
        log.log(2, {"loss": 20.0})
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]
    assert (tmp_path / "metrics.jsonl.garbled").read_bytes().splitlines() == [
        b"not json",
        b"\xff\xfe",
        b"[3]",
        b'{"loss": 2.0}',
    ]


class FullDisk:
    """os.write of a disk that takes `room` bytes; `make_room` gives it more."""

    def __init__(self, monkeypatch, room):
        self.room, self._write = room, os.write
        monkeypatch.setattr("openrlhf_tir.telemetry.jsonl.os.write", self.write)

    def write(self, fd, data):
        if self.room <= 0:
            raise OSError(28, "No space left on device")
        written = self._write(fd, data[: self.room])
        self.room -= written
        return written


def test_a_full_disk_is_said_once_and_the_rows_come_when_there_is_room(tmp_path, monkeypatch, caplog):
    """A row fits, the second is torn in the middle, the third does not begin; then there is room: all is there."""
    disk = FullDisk(monkeypatch, room=80)
    log = MetricsLog(tmp_path, PLAIN)
    for step in (1, 2, 3):
        log.log(step, {"loss": float(step)})
    assert len(caplog.records) == 1 and metrics.read(tmp_path)["step"] == [1]
    disk.room = 10_000
    log.log(4, {"loss": 4.0})
    log.close()
    assert metrics.read(tmp_path)["loss"] == [1.0, 2.0, 3.0, 4.0]
    assert len(caplog.records) == 3, "the refusal, its end, and the torn line that was read"
    assert caplog.records[1].args[-1] == 0, "rows lost"


def test_the_kernel_s_own_full_device_ends_nothing(caplog):
    writer = PatientWriter(Path("/dev/full"))
    writer.write({"step": 1})
    writer.close()
    assert writer.lost == 1 and "No space left on device" in caplog.text


def test_rows_that_a_full_disk_refuses_to_the_end_are_counted(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("openrlhf_tir.telemetry.jsonl.KEPT_ROWS", 2)
    FullDisk(monkeypatch, room=0)
    log = MetricsLog(tmp_path, PLAIN)
    for step in range(5):
        log.log(step, {})
    log.close()
    assert log._writer.lost == 5 and len(caplog.records) == 2


def test_no_log_reads_as_no_columns(tmp_path):
    assert metrics.read(tmp_path) == {}


class HandingOver:
    """A file that lets every other thread go on in the middle of a line."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def write_line(self, line: bytes) -> None:
        time.sleep(0)
        self.lines.append(line)
        time.sleep(0)

    def close(self) -> None: ...


def test_threads_that_share_a_writer_write_every_row_once(tmp_path):
    writer = PatientWriter(tmp_path / "rows.jsonl")
    writer._writer = file = HandingOver()
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(writer.write, {"row": i}) for i in range(400)]:
            done.result()
    assert sorted(json.loads(line)["row"] for line in file.lines) == list(range(400))
