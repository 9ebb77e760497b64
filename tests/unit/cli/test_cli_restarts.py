"""Restarts of a died run: resumed, paused, bounded without progress, and not for mistakes or after a stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from openrlhf_tir.cli import command_line
from openrlhf_tir.cli.exit_codes import FAULT, HOPELESS, MISTAKE, STOPPED, TERMINATED, UNAVAILABLE, code_of
from openrlhf_tir.cli.restarts import Ended, run_with_restarts
from openrlhf_tir.config.schema import Train
from openrlhf_tir.errors import (
    ClusterFull,
    ConfigError,
    DataError,
    Diverged,
    EngineError,
    Stopped,
    Unavailable,
    Unproductive,
)


class Launcher:
    """A fake run per exit code; one that is written as a string like "-9+" commits a checkpoint before it ends so."""

    def __init__(self, tmp_path, *ends, before=False):
        self.latest = tmp_path / "latest"
        self.ends, self.commands, self.pauses = list(ends), [], []
        if before:
            self.latest.write_text("of an earlier run")

    def launch(self, command):
        self.commands.append(command)
        end = self.ends.pop(0)
        if isinstance(end, str) and end.endswith("+"):
            self.latest.write_text(f"step_{len(self.commands)}")
            os.utime(self.latest, ns=(0, len(self.commands)))
            end = int(end[:-1])
        return end if isinstance(end, Ended) else Ended(end)

    def run(self, max_restarts, **train):
        settings = Train(max_restarts=max_restarts, **train)
        return run_with_restarts(["train", "--run-dir", "x"], settings, self.latest, self.launch, self.pauses.append)

    @property
    def resumed(self):
        return ["--train.resume" in c for c in self.commands]


def test_a_died_run_is_resumed_from_its_checkpoint_until_it_ends_well(tmp_path):
    runs = Launcher(tmp_path, "-9+", 1, 0)
    assert runs.run(5) == 0 and runs.resumed == [False, True, True]


def test_a_run_that_died_before_its_first_checkpoint_is_started_anew_even_where_an_earlier_run_left_one(tmp_path):
    """Told to --train.overwrite, a restart with --train.resume would go on with the run that was to be deleted."""
    assert (runs := Launcher(tmp_path, -9, "-9+", 0, before=True)).run(5) == 0 and runs.resumed == [False, False, True]


def test_a_restart_takes_a_checkpoint_by_name_and_a_new_ledger_once(tmp_path):
    """`latest` is newer than the one that was asked for by name."""
    named = Launcher(tmp_path, "-9+", 0)
    named.run(1, resume_from="step_000010", new_ledger=True)
    assert named.commands[1][-6:] == [
        "--train.resume",
        "true",
        "--train.new_ledger",
        "false",
        "--train.resume_from",
        "latest",
    ]
    (tmp_path / "other").mkdir()
    whole = Launcher(tmp_path / "other", "-9+", 0)
    whole.run(1, resume_from="newest_whole")
    assert whole.commands[1][-4:] == ["--train.resume", "true", "--train.new_ledger", "false"]


def test_restarts_without_progress_are_bounded(tmp_path):
    runs = Launcher(tmp_path, -9, -9, -9)
    assert runs.run(2) == -9 and len(runs.commands) == 3


def test_a_checkpoint_gives_all_restarts_back(tmp_path):
    """Two in a row are allowed: the two checkpoints give two more each."""
    runs = Launcher(tmp_path, -9, "-9+", -9, "-9+", -9, -9)
    assert runs.run(2) == -9 and runs.ends == []


def test_pauses_grow_and_begin_anew_after_progress(tmp_path):
    """Full pauses are 1, 2, 4, 8, then after the checkpoint 1 again; each is between half of it and all of it."""
    runs = Launcher(tmp_path, -9, -9, -9, -9, "-9+", 0)
    assert runs.run(5) == 0
    assert all(full / 2 <= pause <= full for pause, full in zip(runs.pauses, [1, 2, 4, 8, 1], strict=True))


@pytest.mark.parametrize("code", [2, 5, 6, 130, 143, -15, -2])
def test_a_mistake_or_a_run_that_was_asked_to_stop_is_not_tried_again(tmp_path, code):
    assert (runs := Launcher(tmp_path, code)).run(3) == code and runs.pauses == []


def test_whoever_is_told_to_stop_the_run_does_not_start_it_again_whatever_its_exit_code(tmp_path):
    assert (runs := Launcher(tmp_path, Ended(3, stop_requested=True))).run(3) == 3 and len(runs.commands) == 1


def test_what_is_transient_is_tried_again_and_waited_for(tmp_path):
    runs = Launcher(tmp_path, UNAVAILABLE, 0)
    assert runs.run(1) == 0
    assert "--train.start_wait_s" not in runs.commands[0], "a person is told at once"
    assert runs.commands[1][runs.commands[1].index("--train.start_wait_s") + 1] == "900.0"


def test_exit_codes_tell_a_mistake_from_what_may_mend_itself():
    errors = [
        ConfigError("x"),
        DataError("x"),
        Unavailable("x"),
        ClusterFull("x"),
        EngineError("x"),
        Stopped("x"),
        Unproductive("x"),
        Diverged("x"),
    ]
    assert [code_of(e) for e in errors] == [
        MISTAKE, MISTAKE, UNAVAILABLE, UNAVAILABLE, FAULT, STOPPED, HOPELESS, HOPELESS,
    ]  # fmt: skip


LAUNCH = """
import sys
from openrlhf_tir.cli.restarts import launch
ended = launch([sys.executable, "-c", CHILD])
print("ended", ended.code, ended.stop_requested, flush=True)
"""
CHILD = """
import os, signal, sys, time
from openrlhf_tir.cli.parent import die_with
signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"child: TERM\\n"), sys.exit(7)))
signal.signal(signal.SIGINT, lambda *_: (os.write(1, b"child: INT\\n"), sys.exit(8)))
signal.signal(signal.SIGHUP, lambda *_: (os.write(1, b"child: HUP\\n"), sys.exit(9)))
die_with(int(sys.argv[sys.argv.index("--die-with-parent") + 1]))
print(os.getpid(), flush=True)
while True: time.sleep(0.01)  # a signal that comes just before a longer sleep, or signal.pause, would not end it
"""


@pytest.fixture
def launcher():
    """(the launcher's process, its child's pid); both gone afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"CHILD = {CHILD!r}\n{LAUNCH}"], stdout=subprocess.PIPE, text=True
    )
    child = int(process.stdout.readline())
    yield process, child
    process.kill()
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (signal.SIGTERM, ["child: TERM", "ended 7 True"]),
        (signal.SIGINT, ["child: INT", "ended 8 True"]),
        (signal.SIGHUP, ["child: HUP", "ended 9 True"]),
    ],
)
def test_a_signal_to_the_launcher_is_the_runs_once_and_waits_for_its_end(launcher, sent, said):
    process, _ = launcher
    process.send_signal(sent)
    assert process.stdout.read().split("\n")[:-1] == said


@pytest.mark.slow
def test_a_signal_that_comes_while_the_run_is_being_started_is_passed_on():
    """Before it is known who the child is. The child does not inherit that its launcher blocks the signal."""
    program = (
        "import os, signal, subprocess, sys; from openrlhf_tir.cli.restarts import launch; real = subprocess.Popen\n"
        "def started(*args, **kwargs):\n"
        "    child = real(*args, **kwargs)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return child\n"
        "subprocess.Popen = started\n"
        "print(tuple(launch([sys.executable, '-c', 'import time; time.sleep(600)'])))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout == f"({-signal.SIGTERM}, True)\n", done.stderr


@pytest.mark.slow
def test_a_launcher_that_is_killed_takes_its_run_along(launcher):
    process, _ = launcher
    process.kill()
    assert process.stdout.read() == "child: TERM\n", "the pipe is closed once both are gone"
    process.wait()


@pytest.mark.slow
def test_a_process_whose_launcher_is_gone_already_does_not_start():
    code = "from openrlhf_tir.cli.parent import die_with; die_with(1)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "ConfigError: --die-with-parent 1: " in result.stderr


def test_a_checkpoint_chosen_by_name_and_a_new_ledger_count_once(tmp_path):
    """After a restart `latest` is newer than the checkpoint that was asked for by name; the newest whole one is asked
    for each time."""
    named = Launcher(tmp_path, "-9+", 0)
    named.run(1, resume_from="step_000010")
    anyway = ["--train.resume", "true", "--train.new_ledger", "false"]
    assert named.commands[1][-6:] == [*anyway, "--train.resume_from", "latest"]
    named.latest.unlink()
    newest = Launcher(tmp_path, "-9+", 0)
    newest.run(1, resume_from="newest_whole")
    assert newest.commands[1][-4:] == anyway


def test_a_launcher_whose_run_was_killed_by_a_signal_says_so_as_a_shell_does(monkeypatch):
    """SIGTERM while the run still checks its configuration: nothing catches it there."""
    from openrlhf_tir.cli import preflight, train

    monkeypatch.setattr(preflight, "check", lambda cfg, problems: [])
    monkeypatch.setattr(train, "run_with_restarts", lambda *args: -signal.SIGTERM)
    assert command_line.main(["train", "--train.max_restarts", "1"]) == TERMINATED
