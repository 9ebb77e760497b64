"""launch_multinode.sh: what it refuses before it starts anything, what it asks of Slurm, and that it ends its own Ray
alone. Ray, Slurm and another user are stand-ins; bash, the script and the sockets are the real ones."""

from __future__ import annotations

import glob
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.contract.docs.docs_blocks import REPO
from tests.contract.unprivileged import as_nobody
from tests.free_port import free_port

pytestmark = pytest.mark.extended

SCRIPT = REPO / "train_scripts" / "launch_multinode.sh"
ADDRESS = (subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout.split() or [""])[0]


@pytest.fixture
def venv(tmp_path) -> Path:
    """A virtual environment whose `ray` notes that it was called."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").write_text(f'#!/usr/bin/env bash\nexec {sys.executable} "$@"\n')
    (tmp_path / "bin/ray").write_text(f"#!/usr/bin/env bash\ntouch {tmp_path}/started\n")
    for name in ("python", "ray"):
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


@pytest.fixture
def others() -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Somebody's Ray on this node: its port, and the process that the launch script of that run has noted."""
    with socket.create_server(("0.0.0.0", 0)) as listening:
        port = listening.getsockname()[1]
        process = subprocess.Popen(["sleep", "60"])
        noted = Path(f"/tmp/openrlhf_tir_ray_{port}.pid")
        noted.write_text(f"{process.pid}\n")
        yield port, process
        noted.unlink(missing_ok=True)
        process.kill()
        process.wait()


@pytest.mark.parametrize("script", ["launch_multinode.sh", "train.sh"])
def test_no_array_that_may_be_empty_is_expanded_bare(script):
    """Bash before 4.4 calls an empty one unbound under set -u."""
    text = (SCRIPT.parent / script).read_text()
    for name in re.findall(r"^(?:local )?(\w+)=\(\)", text, re.MULTILINE):
        bare = text.replace(f'${{{name}[@]+"${{{name}[@]}}"}}', "")
        uses = [line for line in bare.splitlines() if f'"${{{name}[@]' in line and f"((${{#{name}[@]}}" not in line]
        assert name == "hosts" or not uses  # a run without hosts has ended before


def launched(
    venv: Path, port: int | str, *flags: str, hosts: tuple[str, ...] = ("--hosts", "localhost"), **environment: str
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TIR_VENV": str(venv), "RAY_PORT": str(port), "PYTHONPATH": str(REPO), **environment}
    return subprocess.run(
        ["bash", SCRIPT, *hosts, *flags, "--", "--help"],
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize("port", ["06379", "0", "65536", "auto"])
def test_what_is_no_port_is_refused_before_anything_starts(venv, port):
    """06379 would be octal to some that read it, and with 0 Ray takes a port that the workers are not told."""
    done = launched(venv, port)
    assert done.returncode == 2 and f"RAY_PORT={port} " in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (venv / "started").exists()


@pytest.mark.slow
@pytest.mark.skipif(not ADDRESS, reason="this machine has no address")
def test_a_port_that_somebody_listens_on_is_named_with_its_node_and_his_ray_lives_on(venv, others):
    port, process = others
    done = launched(venv, port)
    assert done.returncode == 2 and re.search(rf" {port} .*{re.escape(ADDRESS)} \(localhost\)", done.stderr)
    assert "RAY_PORT" in done.stderr and not (venv / "started").exists()
    assert process.poll() is None


@pytest.mark.slow
def test_a_network_that_a_node_is_not_on_ends_nobody_elses_ray(venv, others):
    port, process = others
    done = launched(venv, port, "--interface", "eth77")
    assert done.returncode == 2 and re.search(r"localhost .* eth77\b", done.stderr)
    assert process.poll() is None and Path(f"/tmp/openrlhf_tir_ray_{port}.pid").exists()


@pytest.mark.slow
@pytest.mark.skipif(not ADDRESS, reason="this machine has no address")
@pytest.mark.parametrize(
    ("allocation", "cpus"),
    [
        ({"SLURM_CPUS_PER_TASK": "64", "SLURM_CPUS_ON_NODE": "128"}, "64"),
        ({"SLURM_CPUS_ON_NODE": "128"}, "128"),
    ],
)
def test_a_step_of_slurm_has_all_cores_of_the_allocation(venv, others, allocation, cpus):
    """srun takes one core for a step, and binds it to that, unless it is told otherwise."""
    programs = venv / "programs"
    programs.mkdir()
    srun = f'#!/usr/bin/env bash\necho "$*" >> {venv}/asked\nuntil [[ $1 == bash ]]; do shift; done\nexec "$@"\n'
    for name, script in (("srun", srun), ("scontrol", "#!/usr/bin/env bash\necho localhost\n")):
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]", "PATH": f"{programs}:{os.environ['PATH']}"}
    done = launched(venv, others[0], hosts=(), **slurm, **allocation)
    assert done.returncode == 2 and re.search(rf" {others[0]} .*\(localhost\).*RAY_PORT", done.stderr)
    steps = (venv / "asked").read_text().splitlines()
    assert steps
    for step in steps:
        assert {f"--cpus-per-task={cpus}", "--cpu-bind=none", "--overlap", "--nodelist=localhost"} <= {*step.split()}


@pytest.mark.slow
@pytest.mark.skipif(not ADDRESS, reason="this machine has no address")
def test_a_user_starts_ray_though_another_user_has_used_the_port_and_leaves_nothing(others):
    """/tmp is everybody's: a file there that another user owns can be neither written nor removed."""
    theirs, process = others[0], others[1]
    port = free_port()
    with tempfile.TemporaryDirectory() as directory:  # pytest's own is closed to other users
        root = Path(directory)
        root.chmod(0o777)
        (root / "bin").mkdir()
        for name, script in (
            ("python", f'exec {sys.executable} "$@"'),
            ("ray", f'echo "$$ $*" >> {root}/started\nexec sleep 600'),
        ):
            (root / "bin" / name).write_text(f"#!/usr/bin/env bash\n{script}\n")
            (root / "bin" / name).chmod(0o755)
        squatted = Path(f"/tmp/openrlhf_tir_ray_{port}.pid")
        squatted.write_text(f"{process.pid}\n")
        squatted.chmod(0o644)
        env = {**os.environ, "TIR_VENV": directory, "RAY_PORT": str(port), "PYTHONPATH": str(REPO)}
        words = [*as_nobody(root), "bash", str(SCRIPT), "--hosts", "localhost", "--", "--help"]
        launcher = psutil.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        begun: list[psutil.Process] = []
        try:
            give_up = time.monotonic() + 600
            while not (root / "started").exists():
                assert launcher.poll() is None and time.monotonic() < give_up
                time.sleep(0.1)
            assert glob.glob(f"/tmp/openrlhf_tir_ray_{port}_*.pid")
            begun = launcher.children(recursive=True)
            launcher.terminate()
            assert launcher.wait(60) == 143
            _, left = psutil.wait_procs(begun, timeout=120)
            assert not left
            assert not glob.glob(f"/tmp/openrlhf_tir_ray_{port}_*.pid"), "the launcher left its own note"
            assert process.poll() is None and squatted.exists() and theirs != port, "and ended nobody else's Ray"
        finally:
            squatted.unlink(missing_ok=True)
            for each in (launcher, *begun):
                with suppress(psutil.NoSuchProcess):
                    each.kill()


@pytest.mark.slow  # it waits as long as a launcher does
@pytest.mark.skipif(not ADDRESS, reason="this machine has no address")
def test_a_head_that_does_not_come_up_is_started_again_and_ends_with_the_launcher(venv):
    calls = venv / "calls"
    (venv / "bin/ray").write_text(
        f'#!/usr/bin/env bash\necho "$$ $*" >> {calls}\n[[ $(wc -l < {calls}) == 1 ]] && exit 1\nexec sleep 600\n'
    )
    env = {**os.environ, "TIR_VENV": str(venv), "RAY_PORT": str(free_port()), "PYTHONPATH": str(REPO)}
    words, said = ["bash", SCRIPT, "--hosts", "localhost", "--", "--help"], venv / "said"
    with said.open("w") as err:
        launcher = psutil.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=err)
    begun, give_up = [], time.monotonic() + 600
    try:
        while not calls.exists() or len(started := calls.read_text().splitlines()) < 2:
            assert launcher.poll() is None and time.monotonic() < give_up, said.read_text()
            time.sleep(0.2)
        begun = launcher.children(recursive=True)
        assert all("start --head" in call for call in started)
        assert re.search(r"localhost .* 10 s\n", said.read_text())
        assert int(started[1].split()[0]) in {process.pid for process in begun}
        launcher.terminate()
        assert launcher.wait(60) == 143
        _, left = psutil.wait_procs(begun, timeout=120)
        assert not left, "the launcher left a Ray behind, or what would start it again"
    finally:
        for process in (launcher, *begun):
            with suppress(psutil.NoSuchProcess):
                process.kill()
