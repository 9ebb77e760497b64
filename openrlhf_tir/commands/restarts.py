"""Restarts: a training process that died is started again from its last checkpoint, with a growing pause, for as long
as it gets on.

    run ──> exit code final (exit_codes.FINAL), or asked to stop ─────────────────────────> that code
        `─> else: a checkpoint since the last start? yes: failures = 0
                  failures < train.max_restarts: pause, run with --train.resume, failures + 1 ──> again

The controller runs in a child process, so that whatever takes it down (kill -9, out of memory, a dead learner rank)
leaves someone to go on. The child dies with this process (`parent.die_with`): nobody trains on unseen. A restart waits
`train.restart_wait_s` for what may be coming back just like itself: environment servers, room in the cluster, the lock
of the run directory."""

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
from ..waiting.backoff import backoff_s, jittered
from .exit_codes import FINAL

NEWEST_WHOLE = "newest_whole"
"""A train.resume_from that means the same after every restart; a checkpoint chosen by name counts once, as later ones
come after it."""


class Ended(NamedTuple):
    """How a run ended. `asked`: somebody told us to stop it, so whatever its code, it is not started again."""

    code: int
    asked: bool = False


def launch(command: Sequence[str]) -> Ended:
    """Run to the end. SIGTERM or SIGINT to us is the child's: passed on, unless it came from the terminal, which sends
    it to both."""
    child = subprocess.Popen([*command, "--die-with-parent", str(os.getpid())])
    ours = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ours)  # only now: the child would inherit it
    asked = False
    try:
        while child.poll() is None:
            got = signal.sigwaitinfo(ours)
            if got.si_signo == signal.SIGCHLD:
                continue
            asked = True
            if got.si_code <= 0:  # SI_USER and the like: a process sent it. The kernel's own are positive
                child.send_signal(got.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Ended(child.returncode, asked)


def run_with_restarts(
    argv: Sequence[str],
    train: Train,
    latest: Path,
    launch: Callable[[Sequence[str]], Ended] = launch,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """`argv` is the command line behind `openrlhf-tir`, `latest` the file that names the newest checkpoint. Returns the
    last exit code."""
    command = [sys.executable, "-m", "openrlhf_tir.cli", *argv, "--train.max_restarts", "0"]
    # A checkpoint chosen by name counts once, later ones came after it; so does a new ledger.
    resume = ["--train.resume", "true", "--train.new_ledger", "false"]
    if train.resume_from != NEWEST_WHOLE:
        resume += ["--train.resume_from", "latest"]
    begun = seen = _stamp(latest)
    failures = 0
    ended = launch(command)
    while not ended.asked and ended.code not in FINAL:
        now = _stamp(latest)
        if now not in (None, seen):
            failures, seen = 0, now
        if failures == train.max_restarts:
            _say(
                f"The run ended with exit code {ended.code}, {failures + 1} times without a new checkpoint."
                f" train.max_restarts = {failures} is used up."
            )
            break
        failures += 1
        pause_s = jittered(backoff_s(failures - 1, cap_s=train.max_backoff_s))
        ours = now not in (None, begun)  # an older one may be of a run that this one was told to overwrite
        _say(
            f"The run ended with exit code {ended.code}."
            f" {'Resuming from its last checkpoint' if ours else 'Starting it again'} in {pause_s:.0f} s, restart"
            f" {failures} of {train.max_restarts} without a new checkpoint."
        )
        pause(pause_s)
        ended = launch([*command, "--train.start_wait_s", str(train.restart_wait_s), *(resume if ours else [])])
    return ended.code


def _stamp(latest: Path) -> tuple[int, str] | None:
    """Changes with every checkpoint that is committed. None: there is none."""
    try:
        return latest.stat().st_mtime_ns, latest.read_text()
    except (OSError, ValueError):  # not there, or no text
        return None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
