"""The soak tells a run that holds on to what it took, or leaves something behind, from one that does not. Runs are
stand-ins of one process or two, without a ledger; signals and samples are the real ones."""

from __future__ import annotations

import json
import math
import mmap
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from benchmarks.crash_trial import kill_runs_at_an_error, of_run, start
from benchmarks.soak import GROWTH_DESCRIPTORS, GROWTH_MIB, MOST_IDLE_STARTS, TOY_BARS, Soak, problems, summary
from benchmarks.soak_watch import MIN_SAMPLES, Life, Sample, Watch, latest_step, own_memory, smaps
from openrlhf_tir.cli.exit_codes import FAULT, HOPELESS, MISTAKE, STOPPED

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
AUDIT = SimpleNamespace(errors=[], trained=[], open=[], finished=False)
STAYS = 'subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)'


class Stage:
    """A soak, and the run that it watches."""

    roles: tuple[str, ...] = ()

    def __init__(self, directory: Path, what: str, again: str) -> None:
        self.run_dir = directory / "run"
        self.up = directory / "up"
        script = directory / "script.py"
        script.write_text(RUN.format(what=what, again=again, up=self.up))
        words = [sys.executable, str(script)]
        watch = Watch(self.run_dir, settle=0)
        self.soak = Soak(words, self.run_dir, random.Random(3), watch, sample_s=0.05, left_s=1.0)

    def started(self) -> subprocess.Popen:
        """Start the run and wait until it heeds signals."""
        self.up.unlink(missing_ok=True)
        process = start(self.soak.words, self.run_dir / "log")
        while not self.up.exists() and process.poll() is None:
            time.sleep(0.02)
        return process

    def faults(self, growth: int = 1000) -> list[str]:
        """`growth` of MiB or of descriptors is one; a process that starts on a slow machine grows for many samples."""
        limits = {"growth_mib": growth, "growth_mib_per_update": growth, "growth_descriptors": growth}
        return [*problems(self.soak, **limits, roles=self.roles)]


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """A run that does `what` at its start, and `again` for ever."""
    monkeypatch.setattr("benchmarks.soak.audit", lambda ledger: AUDIT)
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


def holds(process: psutil.Process) -> int:
    """MiB and descriptors."""
    return (process.memory_info().rss >> 20) + process.num_fds()


@pytest.mark.parametrize(
    ("again", "what"),
    [("held.append(bytearray(1 << 20))", "MiB"), ("held.append(open('/dev/null'))", "descriptors")],
)
def test_a_process_that_grows_is_named_with_what_it_took(stage, again, what):
    on = stage(again=again)
    process = on.started()
    run = psutil.Process(process.pid)
    for _ in range(MIN_SAMPLES):
        on.soak.watch.sample()
        held = holds(run)
        while holds(run) < held + 2:
            time.sleep(0.01)
    process.kill()
    process.wait()
    (fault,) = on.faults(growth=2)
    assert what in fault


def test_a_soak_whose_time_is_over_stops_its_run(stage):
    on = stage()
    on.soak.run(0.0, every_s=60)
    assert sum(on.soak.codes.values()) == 1 and of_run(on.run_dir) == []


@pytest.mark.parametrize("up", [0, 1], ids=["of one run", "of several"])
def test_a_benchmark_that_is_interrupted_leaves_no_process_of_its_run(stage, up):
    on = stage(what=STAYS)
    process = on.started()
    assert len(of_run(on.run_dir)) == 2
    with pytest.raises(KeyboardInterrupt), kill_runs_at_an_error([on.run_dir, on.run_dir.parent][up]):
        raise KeyboardInterrupt
    process.wait(60)
    psutil.wait_procs(of_run(on.run_dir), timeout=60)
    assert of_run(on.run_dir) == []


def test_a_run_that_ends_before_it_has_a_ledger_is_judged_by_its_last_words(tmp_path):
    soak = Soak([], tmp_path, random.Random(3), Watch(tmp_path), sample_s=0.05)
    soak.fail("the reason", hopeless=True)
    limits = {"growth_mib": 1, "growth_mib_per_update": 1, "growth_descriptors": 1}
    assert [*problems(soak, **limits, roles=())] == ["the reason"]
    assert summary(soak, 1.0, ["the reason"])["passed"] is False


@pytest.mark.parametrize("code", [MISTAKE, HOPELESS])
def test_an_end_that_no_resume_can_mend_fails_the_soak_at_once_with_the_last_words_of_the_run(stage, code):
    on = stage(what=f"print('the reason', flush=True); sys.exit({code})")
    on.soak.run(600.0, every_s=600)
    assert dict(on.soak.codes) == {code: 1}
    (fault,) = on.faults()
    assert str(code) in fault and "the reason" in fault


def test_a_run_that_never_comes_to_an_update_is_started_a_few_times_and_no_more(stage):
    on = stage(what=f"sys.exit({FAULT})")
    on.soak.run(600.0, every_s=600)
    assert dict(on.soak.codes) == {FAULT: MOST_IDLE_STARTS} and len(on.faults()) == 1


def test_a_stop_that_ends_with_another_code_is_a_fault(stage):
    on = stage(what=f"signal.signal(signal.SIGTERM, lambda *_: sys.exit({FAULT}))")
    on.soak.disturb(on.started(), "stop")
    (fault,) = on.faults()
    assert "SIGTERM" in fault and str(FAULT) in fault


def test_a_kind_of_process_that_no_sample_judges_is_a_fault(stage):
    on = stage()
    on.roles = ("ray::LearnerRank",)
    on.soak.run(0.0, every_s=60)
    (fault,) = on.faults()
    assert "ray::LearnerRank" in fault


def grown(*rows: tuple[int, float]) -> Life:
    return Life("a", [Sample(updates, pss, 7) for updates, pss in rows])


def test_growth_is_of_the_last_third_over_the_middle_one_and_no_start_up():
    life = grown(*enumerate([0.0, 50.0, 99.0] + [100.0] * 3 + [101.0, 102.0, 103.0]))
    assert len(life.samples) == MIN_SAMPLES and life.growth(settle=0) == (3, 2.0, 0)


def added(*descriptors: int) -> int:
    """Return how many descriptors a process adds that has so many at its samples."""
    return Life("a", [Sample(update, 0.0, number) for update, number in enumerate(descriptors)]).growth(0).descriptors


def test_descriptors_that_are_never_closed_are_growth_and_those_of_a_burst_are_not():
    """Two samples a part: 7, 9, 12, 14, 17 at the fewest rise by 2 four times."""
    assert added(7, 20, 9, 9, 30, 12, 14, 14, 17, 40) == 8
    assert added(7, 7, 7, 7, 7, 20, 27, 27, 27, 27) == 0, "the pool keeps what a burst needed"
    assert added(7, 7, 20, 20, 30, 30, 35, 35, 35, 35) == 0, "and what larger ones needed"
    assert added(7, 20, 7, 30, 9, 7, 7, 20, 30, 8) == 0, "connections come and go"
    assert added(7, 8, 8, 9, 9, 10, 10, 11, 11) == 4, "nine samples make parts of one or two"


UPDATES_OF_A_SAMPLE = 3.5
"""The toy's update takes 1.4 s, and a sample is taken every 5 s."""


def hour_of_the_toy(seed: int, leaked_mib: float = 0.0, leaked_descriptors: float = 0.0) -> dict[int, Life]:
    """Return an engine's lives in an hour in which it is killed every four minutes on average.

    It takes 280 MiB at its start, and its pool keeps the connections of the largest burst so far.

    Args:
        seed: Draws deaths, bursts and what is in use at a sample.
        leaked_mib: What it loses in each update.
        leaked_descriptors: The same in descriptors.
    """
    rng = random.Random(seed)
    lives: dict[int, Life] = {}
    now = 0
    while now < 720:
        pool = 0
        life = Life("ray::RolloutActor")
        for at in range(min(720 - now, 1 + int(rng.expovariate(1 / 48)))):
            updates = int(at * UPDATES_OF_A_SAMPLE)
            pool = max(pool, rng.randint(6, 32) if rng.random() < 0.05 else rng.randrange(6))
            memory = 900 + 280 * (1 - math.exp(-updates / 17)) + rng.gauss(0, 2) + leaked_mib * updates
            descriptors = 40 + pool + rng.randrange(4) + int(leaked_descriptors * updates)
            life.samples.append(Sample(int(now * UPDATES_OF_A_SAMPLE) + updates, memory, descriptors))
        now += len(life.samples)
        lives[len(lives)] = life
    return lives


@pytest.mark.parametrize("seed", range(8))
def test_an_hour_of_the_toy_shows_a_leak_of_a_descriptor_or_a_fifth_of_a_mib_an_update_and_no_other(stage, seed):
    on = stage()
    on.soak.watch.settle = TOY_BARS.settle

    def faults(**leaked: float) -> list[str]:
        on.soak.watch.lives = hour_of_the_toy(seed, **leaked)
        return [
            *problems(
                on.soak,
                growth_mib=GROWTH_MIB,
                growth_mib_per_update=TOY_BARS.growth_mib_per_update,
                growth_descriptors=GROWTH_DESCRIPTORS,
                roles=("ray::RolloutActor",),
            )
        ]

    assert faults() == []
    of_memory = faults(leaked_mib=0.2)[-1]
    grew = on.soak.watch.growth()["ray::RolloutActor"]
    assert f" {grew['memory_mib_per_update']} " in of_memory and f" {grew['updates']} " in of_memory
    (of_descriptors,) = faults(leaked_descriptors=1.0)
    assert f" {on.soak.watch.growth()['ray::RolloutActor']['descriptors_max']} " in of_descriptors


def test_the_first_updates_of_a_process_are_no_growth():
    """Started at update 100: two updates of start-up, then a MiB an update."""
    start_up = [(100, 0.0), (101, 500.0)]
    settled = [(102 + i, 1000.0 + i) for i in range(MIN_SAMPLES)]
    assert grown(*start_up, *settled).growth(settle=2) == (3, 3.0, 0)
    assert grown(*start_up, *settled[1:]).growth(settle=2) is None


def test_growth_an_update_is_pooled_over_the_lives_of_a_kind(tmp_path):
    """One life of 9 updates takes 6 MiB between its thirds, three updates apart; another of 90 takes nothing in 30."""
    watch = Watch(tmp_path, settle=0)
    watch.lives[psutil.Process()] = grown(*((i, 2.0 * i) for i in range(9)))
    watch.lives[psutil.Process().parent()] = grown(*((10 * i, 40.0) for i in range(9)))
    figures = watch.growth()["a"]
    assert (figures["lives"], figures["updates"], figures["memory_mib_max"]) == (2, 33, 6.0)
    assert figures["memory_mib_per_update"] == round(6 / 33, 4)


def test_the_samples_that_are_kept_are_listed_by_kind_and_life(tmp_path):
    watch = Watch(tmp_path)
    lives = [grown((1, 2.0)), grown((3, 4.0), (5, 6.0)), Life("b", [Sample(7, 8.0, 9)])]
    watch.lives = dict(enumerate(lives))
    assert json.loads(json.dumps(watch.table())) == {
        "a": [[[1, 2.0, 7]], [[3, 4.0, 7], [5, 6.0, 7]]],
        "b": [[[7, 8.0, 9]]],
    }


def test_updates_that_a_resume_repeats_count_again(tmp_path):
    watch = Watch(tmp_path)
    for step in (3, 5, 2, 4):
        (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1, "time": 0.0}}\n{{"step": {step}, "time": 0.0}}\n')
        watch.sample()
    assert latest_step(tmp_path) == 4 and watch.updates == 7


def test_a_row_that_is_half_written_is_not_read_yet(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 6, "time": 0.0}\n{"step": 7, "ti')
    assert latest_step(tmp_path) == 6


def test_proofs_of_pushes_that_failed_are_counted_once_and_also_of_rows_that_a_resume_removes(stage):
    on = stage()
    rows = on.run_dir / "metrics.jsonl"
    for text in (
        '{"step": 1, "time": 1.0, "canary_repeats": 1.0}\n{"step": 2, "time": 2.0, "canary_repeats": 1.0}\n',
        '{"step": 1, "time": 1.0, "canary_repeats": 1.0}\n{"step": 2, "time": 3.0, "pushes_repeated": 1.0}\n',
    ):
        rows.write_text(text)
        on.soak.watch.count_alarms()
    assert summary(on.soak, 1.0, [])["false_alarms"] == {"canary_repeats": 2, "pushes_repeated": 1, "stalls": 0}
    assert len(on.faults()) == 2


def test_a_mapped_file_is_no_memory_of_a_process(tmp_path):
    """A library's pages count for less in each process that maps them, so they say nothing about one of these."""
    file = tmp_path / "library"
    file.write_bytes(bytes(16 << 20))
    before = smaps(os.getpid())
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped.find(b"\1") == -1, "every page is read"
        during = smaps(os.getpid())
    assert during["Pss_File"] - before["Pss_File"] > 15 << 20
    assert own_memory(during) - own_memory(before) < 1 << 20
