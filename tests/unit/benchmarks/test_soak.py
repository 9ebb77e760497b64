"""The soak tells a run that holds on to what it took, or leaves something behind, from one that does not. Runs are
stand-ins of one process or two, without a ledger; signals and samples are the real ones."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.crash_trial import start
from benchmarks.soak import MIN_SAMPLES, Life, Soak, Watch, of_run, problems
from openrlhf_tir.commands.exit_codes import STOPPED

RUN = f"""
import pathlib, signal, subprocess, sys, time
held = []
def end(number, frame):
    sys.exit({STOPPED})
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGINT, end)
{{what}}
pathlib.Path("{{up}}").touch()
while True:
    time.sleep(0.02)
    {{again}}
"""
STAYS = 'subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)'


class Stage:
    """A soak, and the run that it watches."""

    def __init__(self, directory: Path, what: str, again: str) -> None:
        self.run_dir = directory / "run"
        self.up = directory / "up"
        script = directory / "script.py"
        script.write_text(RUN.format(what=what, again=again, up=self.up))
        words = [sys.executable, str(script)]
        self.soak = Soak(words, self.run_dir, random.Random(3), Watch(self.run_dir), sample_s=0.05, left_s=1.0)

    def started(self) -> subprocess.Popen:
        """Start the run and wait until it heeds signals."""
        self.up.unlink(missing_ok=True)
        process = start(self.soak.words, self.run_dir / "log")
        while not self.up.exists() and process.poll() is None:
            time.sleep(0.02)
        return process

    def faults(self) -> list[str]:
        return [*problems(self.soak, most_growth_mib=1, most_descriptors=2)]


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """A run that does `what` at its start, and `again` for ever."""
    monkeypatch.setattr("benchmarks.soak.audit", lambda ledger: SimpleNamespace(errors=[]))
    (tmp_path / "run").mkdir()
    yield lambda what="", again="pass": Stage(tmp_path, what, again)
    for process in of_run(tmp_path / "run"):
        process.kill()


@pytest.mark.parametrize("how", ["stop", "stop_group", "interrupt_group"])
def test_a_run_that_ends_at_a_signal_and_leaves_nothing_passes(stage, how):
    on = stage()
    process = on.started()
    on.soak.watch.sample()
    on.soak.disturb(process, how)
    assert dict(on.soak.codes) == {STOPPED: 1} and dict(on.soak.done) == {how: 1}
    assert on.faults() == [] and of_run(on.run_dir) == []


def test_a_process_that_is_left_after_a_stop_is_named_and_ended(stage):
    on = stage(what=STAYS)
    on.soak.disturb(on.started(), "stop")
    (fault,) = on.faults()
    assert "SIGTERM" in fault and Path(sys.executable).name in fault
    for process in of_run(on.run_dir):
        process.wait(60)


@pytest.mark.parametrize(
    ("again", "what"),
    [("held.append(bytearray(1 << 20))", "MiB"), ("held.append(open('/dev/null'))", "descriptors")],
)
def test_a_process_that_grows_is_named_with_what_it_took(stage, again, what):
    on = stage(again=again)
    process = on.started()
    for _ in range(MIN_SAMPLES):
        on.soak.watch.sample()
        time.sleep(0.1)
    process.kill()
    process.wait()
    (fault,) = on.faults()
    assert what in fault


def test_a_soak_whose_time_is_over_stops_its_run(stage):
    on = stage()
    on.soak.run(0.0, every_s=60)
    assert sum(on.soak.codes.values()) == 1 and of_run(on.run_dir) == []


def test_growth_is_of_the_last_third_over_the_middle_one_and_no_start_up():
    life = Life("a", pss=[0.0, 50.0, 99.0] + [100.0] * 3 + [101.0, 102.0, 103.0])
    assert len(life.pss) == MIN_SAMPLES and life.growth(life.pss) == 2.0
