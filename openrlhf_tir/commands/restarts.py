"""Restarts: a training process that died is started again with --train.resume, at most train.max_restarts times.

The controller runs in a child process, so that whatever takes it down (kill -9, out of memory, a dead learner rank) leaves someone to go on.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

MISTAKE = 2
"""Exit code of an error that starting again cannot mend (cli.main)."""


def run_with_restarts(argv: Sequence[str], max_restarts: int, launch=subprocess.call) -> int:
    """`argv` is the command line behind `openrlhf-tir`. Returns the last exit code."""
    command = [sys.executable, "-m", "openrlhf_tir.cli", *argv, "--train.max_restarts", "0"]
    code = launch(command)
    for attempt in range(1, max_restarts + 1):
        if code in (0, MISTAKE, 130):
            break
        print(f"The run ended with exit code {code}. Resuming from its last checkpoint, restart {attempt} of {max_restarts}.", file=sys.stderr, flush=True)
        code = launch([*command, "--train.resume", "true"])
    return code
