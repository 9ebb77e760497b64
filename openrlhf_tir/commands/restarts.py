"""Restarts: a training process that died is started again with --train.resume, at most train.max_restarts times.

The controller runs in a child process, so that whatever takes it down (kill -9, out of memory, a dead learner rank) leaves someone to go on.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence

NEWEST_WHOLE = "newest_whole"
MISTAKE = 2
"""Exit code of an error that starting again cannot mend (cli.main)."""


def _launch(command: Sequence[str]) -> int:
    """Run to the end; a SIGTERM to us ends the child too."""
    child = subprocess.Popen(command)
    before = signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    try:
        return child.wait()
    finally:
        signal.signal(signal.SIGTERM, before)


def run_with_restarts(argv: Sequence[str], max_restarts: int, launch=_launch, resume_from: str = "latest") -> int:
    """`argv` is the command line behind `openrlhf-tir`; `resume_from` is what it says. Returns the last exit code.

    A run that dies before its first checkpoint starts anew. A checkpoint chosen by name counts once: later ones came after it; so does a new ledger.
    """
    resume = ["--train.resume", "true", "--train.resume_or_start", "true", "--train.new_ledger", "false"]
    if resume_from != NEWEST_WHOLE:
        resume += ["--train.resume_from", "latest"]
    command = [sys.executable, "-m", "openrlhf_tir.cli", *argv, "--train.max_restarts", "0"]
    code = launch(command)
    for attempt in range(1, max_restarts + 1):
        if code in (0, MISTAKE, 130, -signal.SIGTERM):
            break
        print(f"The run ended with exit code {code}. Resuming from its last checkpoint, restart {attempt} of {max_restarts}.", file=sys.stderr, flush=True)
        code = launch([*command, *resume])
    return code
