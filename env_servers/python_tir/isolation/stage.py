"""Make the interpreter's directories reachable: for an unprivileged uid, and inside the sandbox.

A server that runs as root drops to an unprivileged uid before bubblewrap starts. If Python lives below a directory that
this uid cannot enter (for example /root/.pyenv), the server binds it to another path in a mount namespace of its own:
no other process of the host sees it, and it disappears with the server.

Inside the sandbox directories keep their path, except those below a directory that the sandbox has for itself: a
checkout in /tmp keeps its packages although the snippet's /tmp is empty.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import stat
from collections.abc import Sequence

from ..sandbox import SandboxError

_CLONE_NEWNS = 0x20000
_MS_BIND = 4096
_MS_REC = 16384
_MS_SLAVE = 1 << 19
_MNT_DETACH = 2
_MOUNT_POINT = "/run/openrlhf-tir"
"""Directory for the bound directories. Other processes see it empty, because the server mounts in its own namespace."""
_SANDBOX_DIRECTORIES = ("/tmp/", "/dev/", "/proc/")
"""Directories that the sandbox has for itself. What the host has there is mounted below `_MOVED`."""
_MOVED = "/opt/openrlhf-tir"
_libc = ctypes.CDLL(None, use_errno=True)


class Stage:
    """Directories and files of the host that a sandbox shows.

    Attributes:
        mounts: Pairs of a source that every uid can reach and its path inside the sandbox.
    """

    def __init__(self, directories: Sequence[str]) -> None:
        self._directory: str | None = None
        self._bound: list[str] = []
        self.mounts: list[tuple[str, str]] = []
        self._targets: dict[str, str] = {}
        for path in _outermost(os.path.realpath(directory) for directory in directories):
            if path.startswith("/usr/"):
                continue
            moved = path.startswith(_SANDBOX_DIRECTORIES)
            self._targets[path] = f"{_MOVED}/{len(self._targets)}" if moved else path
            self.mounts.append((self._reachable_source(path), self._targets[path]))

    def sandbox_path(self, path: str) -> str:
        """Return the path inside the sandbox of a path on the host, with links resolved."""
        path = os.path.realpath(path)
        for directory, target in self._targets.items():
            if f"{path}/".startswith(f"{directory}/"):
                return target + path[len(directory) :]
        return path

    def add_file(self, path: str, target: str) -> None:
        """Show a file of the host, which every user may read, as `target` inside."""
        self.mounts.append((self._reachable_source(os.path.realpath(path)), target))

    def _reachable_source(self, path: str) -> str:
        """Return a path by which the sandbox's uid reaches a file or directory; bind it if it has none."""
        return path if os.geteuid() != 0 or reachable(path) else self._bind(path)

    def _bind(self, path: str) -> str:
        """Bind a file or directory below the mount point and return its new path. Raises SandboxError."""
        remedy = (
            f"Install Python outside of {path}, run the server as its owner,"
            " or give the container the SYS_ADMIN capability."
        )
        if self._directory is None:
            self._directory = _new_directory(remedy)
        target = f"{self._directory}/{len(self._bound)}"
        if os.path.isdir(path):
            os.mkdir(target, 0o755)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        _call("mount", _libc.mount(path.encode(), target.encode(), None, _MS_BIND | _MS_REC, None), remedy)
        self._bound.append(target)
        return target

    def close(self) -> None:
        """Remove the mounts of this stage, and no others."""
        for target in self._bound:
            _libc.umount2(target.encode(), _MNT_DETACH)
        self._bound.clear()


_stage_numbers = itertools.count()
_namespace_pid: int | None = None
"""Id of the process that made the mount namespace for its stages; None before the first. A process that is forked later
finds its parent's id here, and makes a namespace of its own."""


def _new_directory(remedy: str) -> str:
    """Return a new directory for what one stage binds. Only this process's mount namespace shows it, and no two stages
    share one, so that a stage never removes what another has bound. Raises SandboxError."""
    global _namespace_pid
    if _namespace_pid != os.getpid() or not os.path.ismount(_MOUNT_POINT):
        try:
            os.makedirs(_MOUNT_POINT, mode=0o755, exist_ok=True)
        except OSError as e:
            raise SandboxError(f"cannot create {_MOUNT_POINT}: {e.strerror}. {remedy}") from e
        _call("unshare", _libc.unshare(_CLONE_NEWNS), remedy)
        _call("mount", _libc.mount(b"none", b"/", None, _MS_REC | _MS_SLAVE, None), remedy)
        _call("mount", _libc.mount(b"tmpfs", _MOUNT_POINT.encode(), b"tmpfs", 0, b"mode=755"), remedy)
        _namespace_pid = os.getpid()
    directory = f"{_MOUNT_POINT}/{os.getpid()}-{next(_stage_numbers)}"
    os.mkdir(directory)
    os.chmod(directory, 0o755)  # the sandbox's uid must pass it, whatever this process's umask is
    return directory


def _outermost(paths) -> list[str]:
    """Return the paths without those that lie below another one."""
    outermost: list[str] = []
    for path in sorted(set(paths)):
        if not outermost or not path.startswith(outermost[-1] + "/"):
            outermost.append(path)
    return outermost


def reachable(path: str) -> bool:
    """Return True if every user can enter the directory."""
    parts = path.split("/")
    return all(os.stat("/".join(parts[:i]) or "/").st_mode & stat.S_IXOTH for i in range(1, len(parts) + 1))


def _call(name: str, result: int, remedy: str) -> None:
    """Raise SandboxError if a system call returned an error."""
    if result != 0:
        raise SandboxError(f"{name}() failed: {os.strerror(ctypes.get_errno())}. {remedy}")
