"""What plays a container: a process in namespaces of bubblewrap, with a /testbed, a /tmp and process ids of its own,
that listens on loopback."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
PYTHON = "/tmp/.python"
"""Where the image's own Python is."""
PACKAGES = ("pytest", "pluggy", "iniconfig", "packaging", "pygments", "pytest-timeout")
"""What its Python has: pytest, what that needs, and one plugin."""


def make_python(directory: Path) -> None:
    """Make the image's own Python: an environment with PACKAGES, which are links to those of this Python.

    Every run of hidden tests imports all plugins of pytest that its Python has. Those that happen to be installed
    here, hypothesis and xdist among them, would double what a run costs.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = directory / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    (directory / "bin").mkdir()
    base = Path(sys.base_prefix) / "bin" / version
    (directory / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    for name in ("python", "python3"):
        (directory / "bin" / name).symlink_to(base)
    for package in PACKAGES:
        distribution = importlib.metadata.distribution(package)
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
            (packages / top).symlink_to(distribution.locate_file(top))


def started(directory: Path, image: Path, key: str) -> tuple[subprocess.Popen, str]:
    """(a process in namespaces of its own, its address). The image's own server of actions is not there: ours is
    started, whatever the command."""
    testbed = directory / "testbed"
    shutil.copytree(image, testbed, symlinks=True)
    listening = socket.create_server(("127.0.0.1", 0))
    roots = [path for path in Path("/").iterdir() if path.name not in ("tmp", "proc", "dev", "testbed")]
    make_python(directory / "python")
    links = [word for path in roots if path.is_symlink() for word in ("--symlink", os.readlink(path), str(path))]
    binds = [word for path in roots if not path.is_symlink() for word in ("--ro-bind", str(path), str(path))]
    places = [
        "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--bind", str(testbed), "/testbed",
        "--ro-bind", str(REPOSITORY), "/tmp/.stand_in", "--ro-bind", str(directory / "python"), PYTHON,
    ]  # fmt: skip
    # a checkout below /tmp, with its environment
    hidden = [p for p in dict.fromkeys((sys.base_prefix, sys.prefix)) if Path(p).is_relative_to("/tmp")]
    places += [word for path in hidden for word in ("--ro-bind", path, path)]
    command = [sys.executable, "-S", "-m", "tests.contract.runtime_stand_in.actions", str(listening.fileno()), key]
    process = subprocess.Popen(
        ["bwrap", *links, *binds, *places, "--unshare-pid", "--chdir", "/tmp/.stand_in", *command],
        env={
            "PATH": f"{PYTHON}/bin:/usr/bin:/bin",
            "HOME": "/tmp",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        },
        pass_fds=[listening.fileno()],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # whoever reads what `docker run` says would wait for it
    )
    with listening:
        return process, f"127.0.0.1:{listening.getsockname()[1]}"


def killed(pid: int) -> None:
    """With everything in its namespaces: bwrap's own child is process 1 there."""
    with suppress(ProcessLookupError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
