"""What a watched run holds: the peak of a role with its parts, and the growth of each process between its lows."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import psutil
import pytest

from benchmarks import memory_watch
from benchmarks.memory_watch import SETTLED, Held, Moment, figures, growth, read

MB = 10**6
WAITS = "import sys; print(flush=True); sys.stdin.read()"


def engine(pss: int, *, pid: int = 7) -> Held:
    """An engine of which a tenth is of mapped files."""
    return Held(pid, "engine", pss, pss - pss // 10, pss // 10, 0)


def test_the_peak_of_a_role_is_of_all_its_processes_at_one_moment():
    one = Moment(0.0, 0, [engine(300 * MB), engine(10 * MB, pid=8), Held(9, "learner", 100 * MB, 100 * MB, 0, 0)])
    other = Moment(1.0, 0, [engine(200 * MB), engine(200 * MB, pid=8)])
    found = figures([one, other])
    assert found["engine"] == {"pss_gb": 0.4, "anon_gb": 0.36, "file_gb": 0.04, "shared_gb": 0.0}
    assert found["all"] == {"pss_gb": 0.41}


def test_growth_is_the_slope_of_the_lows_and_not_of_the_peaks_without_mapped_files():
    samples = []
    for update in range(25):
        low = 1000 * MB + 3 * MB * update
        samples += [Moment(2.0 * update, update, [engine(low)]), Moment(2.0 * update + 1, update, [engine(2 * low)])]
    assert figures(samples)["engine"]["growth_mb_per_update"] == [2.7]


def test_what_a_process_takes_at_its_start_or_at_the_end_of_the_run_is_no_growth():
    by_update = {update: 1000 * MB for update in range(SETTLED, 25)}
    start = {update: 100 * MB * update for update in range(SETTLED)}
    assert growth(start | by_update | {25: 5000 * MB}) == pytest.approx(0.0, abs=1.0)
    assert growth(start | {SETTLED: 1000 * MB}) is None


def test_a_run_is_watched_to_its_end_with_what_it_starts(tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "metrics.jsonl").write_text(json.dumps({"step": 3}) + "\n")
    words = [sys.executable, "-S", "-c", WAITS, "--run-dir", str(run_dir)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        run.stdout.readline()
        watched = memory_watch.moments(run_dir, every=0.01)
        first = next(watched)
        run.stdin.close()
        run.wait()
        assert first.update == 3
        assert [held.pid for held in first.held] == [run.pid] and first.held[0].pss > MB
        list(watched)  # it ends with the run


def test_a_run_that_ends_between_two_looks_at_it_has_ended(monkeypatch):
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as run:
        process = psutil.Process(run.pid)
        assert run.wait(timeout=60) == 0
    monkeypatch.setattr(process, "is_running", lambda: True)
    assert not memory_watch._runs(process)


def test_samples_are_read_as_they_were_written(tmp_path):
    moment = Moment(time.time(), 2, [engine(5 * MB)])
    (tmp_path / "samples").write_text(json.dumps(moment) + "\n")
    assert read(tmp_path / "samples") == [moment]


def test_ctrl_c_gives_the_figures_so_far_and_a_sample_that_a_kill_tore_is_none(tmp_path, monkeypatch, capsys):
    def interrupted(*_):
        yield Moment(1.0, 2, [engine(100 * MB)])
        raise KeyboardInterrupt

    monkeypatch.setattr(memory_watch, "moments", interrupted)
    monkeypatch.setattr(memory_watch, "end_as_at_ctrl_c", lambda: None)
    out = tmp_path / "samples"
    monkeypatch.setattr(sys, "argv", ["memory_watch", str(tmp_path / "run"), "--out", str(out)])
    memory_watch.main()
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["all"] == {"pss_gb": 0.1}
    whole = read(out)
    out.write_text(out.read_text() + '[3.0, 2, [[7, "eng')
    assert read(out) == whole and len(whole) == 1
