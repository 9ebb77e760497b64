"""The steps of a stage of a Dockerfile, carried out in a Debian root, for a machine without a container runtime.

    root = DebianRoot.bootstrapped(directory)      what python:3.11-slim-bookworm is: Debian 12, Python 3.11, pip
    root.build(steps_of(dockerfile, "env"), context)
    root.command("python", "-m", ...)              a command line that runs inside, as the stage's user

It needs root and a machine whose apt knows a mirror of Debian 12; debootstrap is installed where it is not there. A
command inside has processes and mounts of its own, and the network of this machine.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

BASE = "python:3.11-slim-bookworm"
"""The image that `bootstrapped` stands for."""
PACKAGES = ("python3", "python3-pip", "python3-venv", "ca-certificates")
ENTER = """
set -e
root=$1 directory=$2 user=$3
shift 3
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
cd "$root"
mkdir -p .outside
pivot_root . .outside
umount -l /.outside
cd "$directory"
exec setpriv --pdeathsig KILL --reuid "$user" --regid "$user" --clear-groups "$@"
"""
"""Enters the root by pivot_root: in a chroot nobody may create user namespaces, which the sandbox needs. A change of
the user clears the signal with which --kill-child ends the program, so it is set once more."""


def missing() -> str:
    """Return what this machine lacks to make a Debian root and apt-get cannot install; "" if it lacks nothing."""
    if os.geteuid() != 0:
        return "making a Debian root needs root"
    lacking = [name for name in ("apt-get", "unshare", "pivot_root", "setpriv") if not shutil.which(name)]
    if lacking:
        return f"there is no {lacking[0]}"
    return "" if _mirror() else "apt of this machine has no mirror of Debian 12"


def _mirror() -> str:
    """Return the mirror from which this machine's apt takes Debian 12; "" if there is none."""
    listed = ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages", "Codename: bookworm"]
    mirrors = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split()
    return mirrors[0] if mirrors else ""


def steps_of(dockerfile: str, stage: str) -> Iterator[tuple[str, str]]:
    """Yield the instructions of a stage with their values; FROM, without the stage's name, is the first."""
    lines = "\n".join(line for line in dockerfile.splitlines() if line and not line.startswith("#"))
    inside = False
    for line in lines.replace("\\\n", " ").splitlines():
        instruction, _, value = line.partition(" ")
        if instruction == "FROM":
            image, _, name = value.partition(" AS ")
            inside = name == stage
            value = image
        if inside:
            yield instruction, " ".join(value.split()) if instruction == "FROM" else value.strip()


class DebianRoot:
    """A directory with a Debian system, and what the steps so far say about its commands."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.directory = "/"
        self.user = "0"
        self.environ = {"PATH": "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin", "HOME": "/root"}
        self.entrypoint: list[str] = []

    @classmethod
    def bootstrapped(cls, path: Path) -> DebianRoot:
        """Make a root with Python as the image BASE has it: as `python`, and with a pip that may install anywhere."""
        if not shutil.which("debootstrap"):
            subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "debootstrap"], check=True)
        include = f"--include={','.join(PACKAGES)}"
        # In mounts of its own: ended early, it would leave this machine's /proc mounted below `path`.
        bootstrap = ["unshare", "--mount", "debootstrap", "--variant=minbase", include, "bookworm", path, _mirror()]
        subprocess.run(bootstrap, check=True)
        (path / "usr/local/bin/python").symlink_to("/usr/bin/python3.11")
        for mark in (path / "usr/lib").glob("python3*/EXTERNALLY-MANAGED"):
            mark.unlink()
        shutil.copy("/etc/resolv.conf", path / "etc")
        return cls(path)

    def build(self, steps: Iterator[tuple[str, str]], context: Path) -> None:
        """Carry out the steps of a stage.

        Args:
            steps: Instructions with their values.
            context: The directory from which COPY takes files.
        """
        for instruction, value in steps:
            match instruction:
                case "FROM":
                    assert value == BASE, f"{value} is another image than this root stands for"
                case "RUN":
                    subprocess.run(self.command("sh", "-c", value), check=True)
                case "WORKDIR":
                    self.directory = value
                    self.inside(value).mkdir(parents=True, exist_ok=True)
                case "COPY":
                    self._copy(*shlex.split(value), context=context)
                case "USER":
                    self.user = value
                    self.environ["HOME"] = self._home(value)
                case "ENTRYPOINT":
                    self.entrypoint = json.loads(value)
                case "EXPOSE":
                    pass  # no more than a remark
                case _:
                    raise ValueError(f"the instruction {instruction} is not known here")

    def inside(self, path: str) -> Path:
        """Return where a path of the root is on this machine."""
        return self.path / os.path.join(self.directory, path).lstrip("/")

    def command(self, *words: str, environ: Mapping[str, str] | None = None) -> list[str]:
        """Return the command line of a program in the root, as the user and in the directory of the steps so far."""
        variables = [f"{name}={value}" for name, value in {**self.environ, **(environ or {})}.items()]
        enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "enter"]
        return [*enter, str(self.path), self.directory, self.user, "env", "-i", *variables, *words]

    def _copy(self, *words: str, context: Path) -> None:
        """Copy as COPY does: the files to a directory, or what a directory holds."""
        *sources, target = words
        for source in sources:
            if (context / source).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(context / source, self.inside(target), ignore=ignored, dirs_exist_ok=True)
            else:
                shutil.copy(context / source, self.inside(target))

    def _home(self, uid: str) -> str:
        accounts = (self.path / "etc/passwd").read_text()
        home = re.search(rf"^[^:]*:[^:]*:{uid}:[^:]*:[^:]*:([^:]*):", accounts, re.MULTILINE)
        return home[1] if home else "/"
