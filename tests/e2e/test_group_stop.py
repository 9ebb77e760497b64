"""A training run (Ray, two ZeRO-3 ranks, a sandbox server) that is stopped as launchers do it: by `timeout`, by a
signal to its process group, by Ctrl-C in a pipeline on a terminal. Each stop leaves a checkpoint and nothing else, and
in the end the weights are those of a run that nobody disturbed."""

from __future__ import annotations

import fcntl
import os
import pty
import shlex
import signal
import subprocess
import termios
import time
from contextlib import suppress

import psutil
import pytest

from benchmarks.crash_trial import MARK, ROOT, clean, command, controller_of, end, find, last_step, outcome, start
from benchmarks.stop_trial import stop, wait_until
from openrlhf_tir.cli.exit_codes import INTERRUPTED, STOPPED
from openrlhf_tir.cluster.signals import SAME_S


def on_a_terminal(args: list[str], log, terminal: int) -> subprocess.Popen:
    """`args | tee -a log` in the foreground of a terminal, whose shell waits for the run."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu", MARK: str(log)}
    script = f"trap : INT; {shlex.join(args)} 2>&1 | tee -a {shlex.quote(str(log))}; exit ${{PIPESTATUS[0]}}"
    return subprocess.Popen(
        ["bash", "-c", script], stdin=terminal, stdout=terminal, stderr=terminal, cwd=ROOT, env=env,
        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip


@pytest.mark.long
def test_a_stop_of_the_whole_process_group_leaves_a_checkpoint_and_nothing_else(toy_run, tmp_path):
    args = [*command(tmp_path, toy_run.job, deadlines={}), "--train.stop_grace_s", "120", "--ckpt.save_steps", "50"]
    log = tmp_path / "log"
    resumed = [*args, "--resume"]
    ours, theirs = pty.openpty()

    def trained(steps: int):
        return lambda: last_step(tmp_path) >= steps

    def check(stopped) -> None:
        said = log.read_text()
        assert (stopped.code, stopped.left) == (STOPPED, []), said[-3000:]
        assert (tmp_path / "ckpt" / "latest").read_text() == f"step_{last_step(tmp_path):06d}", said[-3000:]

    process = start(["timeout", "86400", *args], log)
    assert wait_until(process, tmp_path, trained(1))
    check(stop(process, tmp_path))

    process = start(resumed, log)
    assert wait_until(process, tmp_path, trained(2))
    check(stop(process, tmp_path, lambda: os.killpg(process.pid, signal.SIGTERM)))

    process = on_a_terminal(resumed, log, theirs)
    os.close(theirs)
    drain = subprocess.Popen(["cat"], stdin=ours, stdout=subprocess.DEVNULL)  # or the terminal would be full
    try:
        assert wait_until(process, tmp_path, trained(3))
        check(stop(process, tmp_path, lambda: os.write(ours, b"\x03")))
    finally:
        drain.kill()
        drain.wait()
        os.close(ours)
    assert "Traceback" not in log.read_text()

    def twice() -> None:
        """A second signal that is no echo of the first: what is left of the run ends at once.

        A rank is frozen, so that the run is still stopping when the second signal comes.
        """
        find(controller_of(psutil.Process(process.pid)), "learner-1").suspend()
        os.killpg(process.pid, signal.SIGTERM)
        time.sleep(SAME_S + 0.2)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)

    saved = (tmp_path / "ckpt" / "latest").read_text()
    process = start(resumed, log)
    assert wait_until(process, tmp_path, lambda: last_step(tmp_path) >= int(saved.removeprefix("step_")) + 1)
    stopped = stop(process, tmp_path, twice)
    assert (stopped.code, stopped.left) == (INTERRUPTED, []), log.read_text()[-3000:]

    assert end(start(resumed, log)) == 0, log.read_text()[-3000:]
    assert clean(tmp_path, toy_run.job.steps) and outcome(tmp_path) == (toy_run.digest, None)
