"""Start a training process that died again from its last checkpoint, with a growing pause, as long as it makes
progress.

    run ──> exit code final (exit_codes.FINAL), or asked to stop ─────────────────────────> that code
        `─> else: restarts since the newest checkpoint < train.max_restarts: pause, run with --train.resume ──> again

The controller runs in a child process, so that this process survives whatever ends it (kill -9, out of memory, a dead
learner rank). The child dies with this process (`parent.die_with`), so that no run continues unsupervised. A restart
waits RESTART_WAIT_S for what may be coming back too: environment servers, room in the cluster, the lock of the run
directory.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ..config.schema import Train
from ..config.sections.train import NEWEST_WHOLE
from ..machine.launcher import LAUNCHER
from ..machine.stop_signals import stop_signals
from ..waiting.backoff import backoff_s, jittered
from ..waiting.restart_count import RestartCount
from .exit_codes import FINAL

RESTART_WAIT_S = 900.0
"""train.start_wait_s of a restart. A node or a server that went down with the run takes minutes to boot and load."""


class Ended(NamedTuple):
    """How a run ended.

    Attributes:
        code: Its exit code.
        stop_requested: Whether it was asked to stop. If so, it is not started again, whatever its code.
    """

    code: int
    stop_requested: bool = False


def launch(command: Sequence[str]) -> Ended:
    """Run the command to its end.

    SIGTERM, SIGINT and SIGHUP are passed on to the child, unless they came from the terminal, which sends them to
    both processes.
    """
    passed_on = set(stop_signals())
    waited_signals = {*passed_on, signal.SIGCHLD}
    # Blocked before the child starts: a signal that comes meanwhile is passed on and does not end this process.
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, waited_signals)
    stop_requested = False
    try:
        child = subprocess.Popen(
            [*command, "--die-with-parent", str(os.getpid())],
            env={**os.environ, LAUNCHER: str(os.getpid())},
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask),  # it would inherit the mask
        )
        # What is pending by now may have come from the terminal when there was no child yet.
        perhaps_missed = signal.sigpending() & passed_on
        while child.poll() is None:
            received = signal.sigwaitinfo(waited_signals)
            if received.si_signo == signal.SIGCHLD:
                continue
            stop_requested = True
            # A process sent it (SI_USER and the like); the kernel's own are positive.
            if received.si_code <= 0 or received.si_signo in perhaps_missed:
                child.send_signal(received.si_signo)
            perhaps_missed.discard(signal.Signals(received.si_signo))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
    return Ended(child.returncode, stop_requested)


def run_with_restarts(
    argv: Sequence[str],
    train: Train,
    latest: Path,
    launch: Callable[[Sequence[str]], Ended] = launch,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Run the command, and start it again as long as restarts are left.

    Args:
        argv: The command line behind `openrlhf-tir`.
        train: The [train] section.
        latest: The file that names the newest checkpoint.
        launch: Runs a command to its end.
        pause: Sleeps for a number of seconds.

    Returns:
        The last exit code.
    """
    command = [sys.executable, "-m", "openrlhf_tir.cli", *argv, "--train.max_restarts", "0"]
    # A checkpoint chosen by name and a new ledger count only for the first start, because later ones follow.
    resume = ["--train.resume", "true", "--train.new_ledger", "false"]
    if train.resume_from != NEWEST_WHOLE:
        resume += ["--train.resume_from", "latest"]
    begun = _stamp(latest)
    restarts = RestartCount(train.max_restarts, lambda: _stamp(latest))
    ended = launch(command)
    while not ended.stop_requested and ended.code not in FINAL:
        if not restarts.take():
            _say(
                f"The run ended with exit code {ended.code}, {restarts.used + 1} times without a new checkpoint."
                f" train.max_restarts = {restarts.allowed} is used up."
            )
            break
        pause_s = jittered(backoff_s(restarts.used - 1))
        # A checkpoint that was there at the start may be of a run that this one was told to overwrite.
        has_checkpoint = _stamp(latest) not in (None, begun)
        _say(
            f"The run ended with exit code {ended.code}."
            f" {'Resuming from its last checkpoint' if has_checkpoint else 'Starting it again'} in {pause_s:.0f} s,"
            f" {restarts} (train.max_restarts)."
        )
        pause(pause_s)
        wait = ["--train.start_wait_s", str(RESTART_WAIT_S)]
        ended = launch([*command, *wait, *(resume if has_checkpoint else [])])
    return ended.code


def _stamp(latest: Path) -> tuple[int, str] | None:
    """Return a value that changes with every checkpoint that is committed; None if there is none."""
    try:
        return latest.stat().st_mtime_ns, latest.read_text()
    except (OSError, ValueError):  # The file is missing, or is not text.
        return None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
