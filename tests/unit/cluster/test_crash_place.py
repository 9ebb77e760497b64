"""A crash in a library that an environment's class calls is told with the class's line."""

from __future__ import annotations

import subprocess
import sys

from openrlhf_tir.cluster.env_process import crash_place


def test_the_innermost_line_of_the_users_file_in_the_last_crash_is_found(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("import ctypes\n\ndef inner():\n    ctypes.string_at(0)\n\ndef step():\n    inner()\n\nstep()\n")
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode < 0
    earlier = f'Fatal Python error: Aborted\n  File "{path}", line 7 in step\n'
    assert crash_place(earlier + done.stderr, f"{path}:Class") == f"{path}:4"
    assert crash_place(earlier + done.stderr, str(path)) == f"{path}:4"


def test_without_a_crash_or_a_line_of_the_file_there_is_no_place(tmp_path):
    assert crash_place("INFO: started\n", f"{tmp_path}/mine.py:Class") is None
    assert crash_place('Fatal Python error: Aborted\n  File "/x.py", line 3 in f\n', f"{tmp_path}/mine.py") is None
    assert crash_place('Fatal Python error: Aborted\n  File "/x.py", line 3 in f\n', None) is None


def test_the_line_of_another_thread_is_not_the_crash(tmp_path):
    path = f"{tmp_path}/x.pyenv/mine.py"
    log = (
        f'Fatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n  File "{path}", line 9 in idle\n\n'
        f'Current thread 0x2 (most recent call first):\n  File "/lib.py", line 1 in f\n'
        f'  File "{path}", line 4 in step\n'
    )
    assert crash_place(log, f"{path}:Class") == f"{path}:4"
