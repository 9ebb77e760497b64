"""A benchmark that is asked to stop clears away what it has started and written."""

from __future__ import annotations

import signal
import subprocess
import sys

from tests.conftest import REPO

WAITS = """
import sys, time
from pathlib import Path
from benchmarks.command import end_as_at_ctrl_c
end_as_at_ctrl_c()
try:
    print("up", flush=True)
    time.sleep(600)
finally:
    Path(sys.argv[1]).touch()
"""


def test_sigterm_ends_a_benchmark_as_ctrl_c_does(tmp_path):
    cleared = tmp_path / "cleared"
    command = [sys.executable, "-c", WAITS, str(cleared)]
    with subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) != 0
    assert cleared.exists()
