"""Whether this machine can confine model-written code, as env_servers/python_tir/isolation does."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

BWRAP_TRIAL_S = 10
"""Deadline of one `bwrap true` in seconds. It takes milliseconds, on a busy machine maybe seconds."""
LANDLOCK_CREATE_RULESET = 444
LANDLOCK_ABI = 6
"""The version of Linux 6.12, the first that also confines signals and abstract sockets
(env_servers/python_tir/isolation/fence.py needs it)."""


def isolation_fault() -> str | None:
    """Return why neither bubblewrap nor Landlock can confine code here; None if a short trial shows that one can."""
    bwrap = shutil.which("bwrap")
    fault = "bubblewrap is not installed"
    if bwrap:
        try:
            trial = subprocess.run(
                [bwrap, "--unshare-user", "--ro-bind", "/", "/", "true"],
                capture_output=True,
                text=True,
                timeout=BWRAP_TRIAL_S,
            )
            if trial.returncode == 0:
                return None
            fault = f"bubblewrap does not work ({(trial.stderr.strip().splitlines() or ['no message'])[-1][:200]})"
        except (OSError, subprocess.TimeoutExpired) as error:
            fault = f"bubblewrap does not work ({error})"
    version = ctypes.CDLL(None).syscall(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    return None if version >= LANDLOCK_ABI else f"{fault}, and this kernel's Landlock is too old (it needs Linux 6.12)"
