"""Restarts: a training process that died is started again with --train.resume, at most train.max_restarts times.

The controller runs in a child process, so that whatever takes it down (kill -9, out of memory, a dead learner rank) leaves someone to go on.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence

MISTAKE, STOPPED = 2, 5
"""Exit codes of an error that starting again cannot mend, and of a run that was asked to stop (cli.main)."""


def _launch(command: Sequence[str]) -> int:
    """Run to the end. SIGTERM and SIGINT are passed on, and the child is waited for: it stops in good order, a second signal ends it at once."""
    child = subprocess.Popen(command)
    before = {number: signal.signal(number, lambda number, _: child.send_signal(number)) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        return child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_with_restarts(argv: Sequence[str], max_restarts: int, launch=_launch) -> int:
    """`argv` is the command line behind `openrlhf-tir`. Returns the last exit code."""
    command = [sys.executable, "-m", "openrlhf_tir.cli", *argv, "--train.max_restarts", "0"]
    code = launch(command)
    for attempt in range(1, max_restarts + 1):
        if code in (0, MISTAKE, STOPPED, 130, -signal.SIGTERM):
            break
        print(f"The run ended with exit code {code}. Resuming from its last checkpoint, restart {attempt} of {max_restarts}.", file=sys.stderr, flush=True)
        code = launch([*command, "--train.resume", "true"])
    return code
