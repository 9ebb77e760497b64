"""End a command with everything that it has started."""

from __future__ import annotations

import signal
import subprocess

import psutil
import pytest

from miniatures.end_process import end_process


def started(script: str) -> tuple[subprocess.Popen, psutil.Process]:
    """Return a shell in a session of its own, and the child whose id it prints when it is ready."""
    process = subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    return process, psutil.Process(int(process.stdout.readline()))


@pytest.mark.parametrize(("on_term", "status"), [("kill $!; exit 7", 7), (":", -signal.SIGKILL)])
def test_a_process_that_does_not_stop_in_time_is_killed_with_its_child(on_term, status):
    process, child = started(f"trap '{on_term}' TERM; sleep 600 & echo $!; while true; do wait; done")
    with process:
        end_process(process, 60 if status == 7 else 0.2)
        assert process.returncode == status
        psutil.wait_procs([child], timeout=60)
        assert not child.is_running()
        end_process(process, 60)
        assert process.returncode == status
