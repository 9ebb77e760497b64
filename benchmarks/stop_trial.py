"""One stop of the stop matrix: SIGTERM to a training run (benchmarks/crash_trial.py) at a moment, what came of it."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from openrlhf_tir.cli.exit_codes import DONE, STOPPED, TERMINATED

from .crash_trial import TIMEOUT_S, last_line, last_step, lives, of_run

LEFT_S = 20.0
"""Seconds for the kernel to end what was killed and for init to take it away, once the run itself is gone."""


@dataclass
class Stopped:
    """What a run did that was sent SIGTERM."""

    code: int
    """The exit code; -15 when the signal came before there was a handler for it."""
    seconds: float
    """Seconds from the signal until the process that got it was gone."""
    step: int
    """The last finished step when it ended."""
    left: list[str]
    """Command lines of its processes that were still there LEFT_S after it."""
    said: str
    """The last line that it printed."""

    @property
    def in_order(self) -> bool:
        """Also the signal's own code, before there is a run that could be left half done; and 0, when it came after the
        last of the work."""
        return self.code in (STOPPED, DONE, -signal.SIGTERM, TERMINATED)


def wait_until(process: subprocess.Popen, run_dir: Path, reached: Callable[[], bool]) -> bool:
    """False: it ended before, and well. Raises RuntimeError for a run that failed or does not get there: killed."""
    began = time.monotonic()
    while not reached():
        if process.poll() == 0:
            return False
        if process.returncode is not None:
            raise RuntimeError(f"The run ended with {process.returncode}:\n{(run_dir / 'log').read_text()[-3000:]}")
        if time.monotonic() - began > TIMEOUT_S:
            raise _hung(process, run_dir)
        time.sleep(0.05)
    return True


def stop(process: subprocess.Popen, run_dir: Path, send: Callable[[], object] | None = None) -> Stopped:
    """Send the stop now: SIGTERM to the process, unless `send` does it otherwise.

    Raises RuntimeError for a run that does not end, which is killed then.
    """
    began, seen = time.monotonic(), _below(process)
    if send is None:
        process.send_signal(signal.SIGTERM)
    else:
        with suppress(ProcessLookupError):  # A run that ended by itself just before is judged by its exit code.
            send()
    while process.poll() is None:
        if time.monotonic() - began > TIMEOUT_S:
            raise _hung(process, run_dir)
        seen |= _below(process)
        time.sleep(0.2)
    seconds = time.monotonic() - began
    _, alive = psutil.wait_procs({*seen, *of_run(run_dir)}, timeout=LEFT_S)
    return Stopped(
        process.returncode,
        round(seconds, 1),
        last_step(run_dir),
        [_shown(p) for p in alive if lives(p)],
        last_line(run_dir / "log"),
    )


def _hung(process: subprocess.Popen, run_dir: Path) -> RuntimeError:
    for one in {*_below(process), *of_run(run_dir)}:
        with suppress(psutil.Error):
            one.kill()
    process.kill()
    process.wait()
    return RuntimeError(f"The run does not get on, for {TIMEOUT_S} s:\n{(run_dir / 'log').read_text()[-3000:]}")


def _below(process: subprocess.Popen) -> set[psutil.Process]:
    """What is below it now: a sandbox has an environment of its own, so the mark does not find it."""
    try:
        return set(psutil.Process(process.pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return set()


def _shown(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {process.status()} {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return str(process.pid)
