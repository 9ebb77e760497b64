"""Run a command as `nobody`, also where the interpreter lives in a directory that only root may enter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from env_servers.python_tir.isolation.stage import reachable

REPO = Path(__file__).resolve().parents[2]
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "HOME=/nonexistent"]
OPEN_A_WAY = """
set -e
python=$1 hidden=$2 aside=$3; shift 3
mount --bind "$python" "$aside"
mount -t tmpfs -o mode=755 none "$hidden"
mkdir -p "$python"
mount --move "$aside" "$python"
exec "$@"
"""
"""In a mount namespace of its own: the hidden directory holds nothing but the interpreter, and anyone may enter it."""


def as_nobody(scratch: Path) -> list[str]:
    """The start of a command line. Skips the test where it cannot be had; empty where there is none to drop."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv")
    return [*reachable_python(scratch), *NOBODY]


def reachable_python(scratch: Path) -> list[str]:
    """A command line's start under which any user can run this interpreter. Skips the test where the checkout itself is
    closed to others."""
    if not reachable(str(REPO)):
        pytest.skip(f"{REPO} is not readable for nobody: chmod o+x its parents")
    python = Path(sys.base_prefix)
    hidden = [p for p in (*reversed(python.parents), python) if not reachable(str(p))]
    if not hidden:
        return []
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        pytest.skip(f"nobody cannot enter {hidden[0]}, and there is no right to mount around it")
    aside = scratch / "aside"
    aside.mkdir()
    return ["unshare", "--mount", "bash", "-c", OPEN_A_WAY, "bash", str(python), str(hidden[0]), str(aside)]
