"""SIGTERM, Ctrl-C, a closed terminal and the time limit, on processes: one stop for signals together, an end at once
for a second."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from openrlhf_tir.cli.exit_codes import STOPPED
from openrlhf_tir.cli.restarts import Ended, run_with_restarts
from openrlhf_tir.config.schema import Train

pytestmark = pytest.mark.slow

PROGRAM = """
import asyncio, signal, subprocess, sys, threading, time
from pathlib import Path
from openrlhf_tir import cli
from openrlhf_tir.cli import command_line
from openrlhf_tir.cluster import signals
from openrlhf_tir.config import Config

def blocked():  # In short sleeps: a signal that comes just before a sleep does not wake it.
    while True:
        time.sleep(0.01)

def elsewhere():
    time.sleep(0.5)  # the main thread is asleep in the event loop by now
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    time.sleep(1000)

async def main(stubborn, limit):
    cfg = Config.model_validate({"run_dir": Path("run"), "train": {"stop_grace_s": 0.5, "save_before_s": limit}})
    async with signals.stoppable(cfg) as s:
        child = subprocess.Popen(["sleep", "1000"])
        print(child.pid, flush=True)
        if stubborn == "blocked":
            blocked()
        if stubborn in ("starting", "alarmed"):
            try:
                with s.blocking():
                    if stubborn == "alarmed":
                        ours = signal.getsignal(signal.SIGTERM)
                        signal.signal(signal.SIGTERM, lambda *received: (signal.alarm(5), ours(*received)))
                        print("as in ray.init", flush=True)
                    blocked()
            finally:
                child.kill()
                if stubborn == "alarmed":
                    time.sleep(6)
        if stubborn == "elsewhere":
            threading.Thread(target=elsewhere, daemon=True).start()
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            if stubborn == "stubborn":
                print("winding down", flush=True)
                await asyncio.sleep(1000)
            raise
        finally:
            child.kill()

def run(args):
    signals.SAME_S = float(sys.argv[2])
    asyncio.run(main(sys.argv[1] * (sys.argv[1] != "polite"), float(sys.argv[3]) if len(sys.argv) > 3 else None))

command_line._module = lambda command: type("M", (), {"run": staticmethod(run)})
parsed = type("A", (), {"command": "x", "parser": None}), []
command_line.build_parser = lambda only: type("P", (), {"parse_known_args": staticmethod(lambda argv: parsed)})
sys.exit(cli.main(["x"]))
"""


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen, int]]]:
    """Starts the program; returns it and the id of the process that it started, once that is up."""
    processes: list[psutil.Process] = []

    def start(*args: str) -> tuple[subprocess.Popen, int]:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *args],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        child = int(process.stdout.readline())
        processes.extend([psutil.Process(process.pid), psutil.Process(child)])
        return process, child

    yield start
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def gone(child: int) -> bool:
    try:
        return psutil.Process(child).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(("number", "saved"), [(signal.SIGTERM, True), (signal.SIGINT, False), (signal.SIGHUP, True)])
def test_a_signal_ends_the_command_with_a_code_of_its_own_and_nothing_is_left(started, tmp_path, number, saved):
    if saved:
        (tmp_path / "run" / "ckpt").mkdir(parents=True)
    process, child = started("polite", "1.0")
    process.send_signal(number)
    _, said = process.communicate(timeout=120)
    assert process.returncode == STOPPED and gone(child)
    assert number.name in said and ("--resume" in said) == saved and "Traceback" not in said


def test_signals_that_come_together_are_one_request(started):
    """The launcher passes on what the terminal has sent to both. (Within 600 s here, so no machine is too slow.)"""
    process, child = started("polite", "600")
    for _ in range(3):
        process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == STOPPED and gone(child)


@pytest.mark.extended
def test_a_second_hang_up_is_no_second_signal(started):
    """When a terminal closes, the shell and the kernel both send one, on a busy machine long after each other."""
    process, child = started("stubborn", "0")
    process.send_signal(signal.SIGHUP)
    assert process.stdout.readline() == "winding down\n"
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == 130 and gone(child)


def test_under_nohup_a_terminal_that_closes_stops_nothing():
    tells = "from openrlhf_tir.machine.stop_signals import stop_signals; print([s.name for s in stop_signals()])"
    command = [sys.executable, "-c", tells]
    said = [
        subprocess.run(["env", f"--{how}-signal=HUP", *command], capture_output=True, text=True, timeout=120).stdout
        for how in ("default", "ignore")
    ]
    assert said == ["['SIGTERM', 'SIGINT', 'SIGHUP']\n", "['SIGTERM', 'SIGINT']\n"]


@pytest.mark.extended
def test_a_second_signal_ends_everything_at_once(started):
    process, child = started("stubborn", "0")
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "winding down\n"
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130 and gone(child) and said.count("SIGTERM") == 2


def test_a_second_signal_ends_everything_although_the_event_loop_is_blocked(started):
    """As ray.init and imports block it. Sent until it ends: two that are pending together are delivered as one."""
    process, child = started("blocked", "0")
    for _ in range(1200):
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
            break
    else:
        process.kill()
    process.communicate(timeout=120)
    assert process.returncode == 130 and gone(child)


def test_a_signal_while_ray_starts_is_not_waited_for_until_it_is_up(started):
    process, child = started("starting", "600")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == STOPPED and gone(child) and "--resume" in said and "Traceback" not in said


def test_a_signal_that_another_thread_takes_wakes_the_event_loop(started):
    """The kernel gives it to any thread that does not block it: Ray, torch and gRPC have dozens. One that comes just
    before the loop sleeps is the same."""
    process, child = started("elsewhere", "600")
    try:
        _, said = process.communicate(timeout=120)
        assert process.returncode == STOPPED and gone(child) and "SIGTERM" in said
    finally:
        process.kill()


@pytest.mark.extended
def test_the_alarm_that_rays_own_handler_sets_before_ours_does_not_abort_the_closing(started):
    """Ray's C++ handler of SIGTERM is there from the middle of ray.init to its end: it sets an alarm of 3 s and calls
    ours; closing may take longer."""
    process, child = started("alarmed", "0.2")
    assert process.stdout.readline() == "as in ray.init\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == STOPPED
    assert gone(child)


def test_the_time_limit_of_the_job_asks_like_a_signal(started):
    process, child = started("polite", "1.0", "11")
    _, said = process.communicate(timeout=120)
    assert process.returncode == STOPPED and gone(child) and "train.save_before_s = 11 s" in said


@pytest.mark.parametrize("started_by", ["a launcher", "a command of its child"])
@pytest.mark.extended
def test_the_time_limit_counts_from_the_launcher_however_that_was_started(tmp_path, started_by):
    """The launcher is a second older than its child. A process that the child starts is no run of the launcher's."""
    tells = (
        "import os, psutil, time; from openrlhf_tir.machine.launcher import seconds_up;"
        " began = time.time() - seconds_up();"
        " parent, own = (psutil.Process(pid).create_time() for pid in (os.getppid(), os.getpid()));"
        " print(abs(began - parent) < abs(began - own))"
    )
    nested = f"import subprocess, sys, time; time.sleep(1); subprocess.run([sys.executable, '-c', {tells!r}])"
    command = tells if started_by == "a launcher" else nested
    launcher = (
        "import sys, time; time.sleep(1); from openrlhf_tir.cli.restarts import launch;"
        f" launch([sys.executable, '-c', {command!r}])"
    )
    done = subprocess.run(
        [sys.executable, "-u", "-c", launcher], cwd=tmp_path, timeout=240, capture_output=True, text=True
    )
    assert done.stdout == f"{started_by == 'a launcher'}\n", done.stderr


def test_a_launcher_passes_a_signal_on_waits_and_does_not_start_again(tmp_path):
    """The child sends the signal, to its launcher only, and exits with a stopped run's code when it gets it back."""
    program = (
        "import signal, sys, os, time; signal.signal(signal.SIGINT, lambda *_: sys.exit(5));"
        " os.kill(os.getppid(), signal.SIGINT)\nwhile True: time.sleep(0.01)"
    )
    launcher = (
        "import sys; from openrlhf_tir.cli.restarts import launch;"
        f" sys.exit(launch([sys.executable, '-c', {program!r}]).code)"
    )
    done = subprocess.run([sys.executable, "-c", launcher], cwd=tmp_path, timeout=120, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (STOPPED, "")
    seen = []
    end = run_with_restarts(
        ["train"], Train(max_restarts=5), tmp_path / "latest", lambda command: seen.append(command) or Ended(STOPPED)
    )
    assert end == STOPPED and len(seen) == 1
