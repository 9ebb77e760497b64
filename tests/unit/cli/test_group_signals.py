"""One stop for a whole process group, as launchers send it: what the run has started lives until the run has ended it.

The program stands for a run: a daemon started as Ray starts its own, an environment server, a checkpoint that takes a
second. `tests/e2e/test_group_stop.py` does the same with a real training run."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from openrlhf_tir.cli.exit_codes import STOPPED

PROGRAM = """
import asyncio, sys, urllib.request
from pathlib import Path
from ray._private import services
from openrlhf_tir import cli
from openrlhf_tir.cli import command_line
from openrlhf_tir.cluster import signals
from openrlhf_tir.cluster.env_process import env_urls
from openrlhf_tir.cluster.own_sessions import own_sessions
from openrlhf_tir.config import Config

async def main():
    cfg = Config.model_validate({"run_dir": Path("run"), "env": {"name": "echo"}, "train": {"stop_grace_s": 600.0}})
    cfg.run_dir.mkdir(exist_ok=True)
    async with signals.stoppable(cfg):
        with own_sessions():
            daemon = services.start_ray_process(["sleep", "1000"], "raylet", fate_share=True).process
        async with env_urls(cfg) as urls:
            health = urls["echo"][0] + "/health"
            Path("pids").write_text(f"{daemon.pid}")
            print("trains", flush=True)
            try:
                await asyncio.sleep(1000)
            finally:
                await asyncio.sleep(1)
                reply = await asyncio.to_thread(urllib.request.urlopen, health, None, 300)
                Path("saved").write_text(f"{daemon.poll()} {reply.status}")
                print("saved", daemon.poll(), reply.status, flush=True)
                daemon.kill()

def run(args):
    signals.SAME_S = 600.0  # no machine is so slow that one stop becomes two
    asyncio.run(main())

command_line._module = lambda command: type("M", (), {"run": staticmethod(run)})
parsed = type("A", (), {"command": "x", "parser": None}), []
command_line.build_parser = lambda only: type("P", (), {"parse_known_args": staticmethod(lambda argv: parsed)})
sys.exit(cli.main(["x"]))
"""
TRAIN = [sys.executable, "-c", PROGRAM]


def below(process: subprocess.Popen) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def stopped(process: subprocess.Popen, output, send) -> tuple[int, str]:
    """Send the stop once the program trains; return its code and what it printed. Nothing of it may be left."""
    try:
        assert output.readline().strip() == "trains"
        ours = below(process)
        assert any(is_server(p) for p in ours)
        send()
        code = process.wait(120)
        said = ""
        with suppress(OSError):  # a terminal whose last writer is gone
            said = output.read()
        _, left = psutil.wait_procs(ours, timeout=120)
        assert not left, "processes of the run are left"
        return code, said
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def piped(command: list[str], directory: Path) -> subprocess.Popen:
    return subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, text=True, start_new_session=True)


@pytest.mark.slow
def test_timeout_delivers_one_stop_twice_and_it_stays_one(tmp_path):
    """It signals its child and then its own process group, as it does when the time is up."""
    process = piped(["timeout", "1000", *TRAIN], tmp_path)
    code, said = stopped(process, process.stdout, process.terminate)
    assert (code, said.split()) == (STOPPED, ["saved", "None", "200"])


@pytest.mark.slow
@pytest.mark.extended
def test_ctrl_c_in_a_pipeline_on_a_terminal_is_one_stop(tmp_path):
    """The terminal signals everybody in the foreground: the shell, the run, and who reads its output."""
    ours, theirs = pty.openpty()
    output = tmp_path / "output"
    script = f'"$0" -c "$1" | tee {output}; exit ${{PIPESTATUS[0]}}'

    def take_the_terminal() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a suite that runs in the background ignores it
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        ["bash", "-c", f"trap : INT; {script}", sys.executable, PROGRAM],
        cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        preexec_fn=take_the_terminal,
    )  # fmt: skip
    os.close(theirs)

    def interrupt() -> None:
        while "\n" not in output.read_text():  # tee writes to the terminal first
            time.sleep(0.01)
        os.write(ours, b"\x03")

    with open(ours) as shown:
        code, _ = stopped(process, shown, interrupt)
    assert code == STOPPED
    assert output.read_text() == "trains\n", "tee is gone, and what was printed since is lost"
    assert (tmp_path / "saved").read_text() == "None 200"


@pytest.mark.slow
def test_a_terminal_that_closes_is_one_stop(tmp_path):
    """The kernel signals the process that leads the session, here the run itself. What it prints since is lost."""
    ours, theirs = pty.openpty()

    process = subprocess.Popen(
        TRAIN, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(theirs)
    with open(ours, closefd=False) as shown:
        code, _ = stopped(process, shown, lambda: os.close(ours))
    assert code == STOPPED
    assert (tmp_path / "saved").read_text() == "None 200"


def is_server(process: psutil.Process) -> bool:
    """Return True for an environment server, and not for a subshell of the script or a child that has just ended."""
    try:
        return "env_servers.echo" in process.cmdline()
    except psutil.NoSuchProcess:  # of which ZombieProcess is a kind
        return False


@pytest.mark.slow
@pytest.mark.extended
def test_the_start_script_ends_its_servers_once_and_leaves_none_when_it_is_killed(tmp_path):
    root = Path(__file__).parents[3]
    for end, count in ((signal.SIGTERM, 2), (signal.SIGKILL, 1)):
        command = ["bash", str(root / "train_scripts/start_env_servers.sh"), "-n", str(count), "-e", "echo", "-p", "0"]
        process = subprocess.Popen(
            command, env={**os.environ, "TIR_VENV": sys.prefix}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, start_new_session=True,
        )  # fmt: skip
        assert len(process.stdout.readline().split(",")) == count
        servers = [p for p in psutil.Process(process.pid).children() if is_server(p)]
        assert len(servers) == count and {os.getsid(p.pid) for p in servers} == {p.pid for p in servers}
        os.killpg(process.pid, end)
        assert process.wait(60) == (143 if end == signal.SIGTERM else -signal.SIGKILL)
        _, left = psutil.wait_procs(servers, timeout=60)
        assert not left
