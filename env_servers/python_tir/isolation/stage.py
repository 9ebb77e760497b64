"""Stage: makes the interpreter's directories reachable, for an unprivileged uid and inside the sandbox.

A server that runs as root drops to an unprivileged uid before bubblewrap starts. When Python lives below a directory
that this uid cannot enter (/root/.pyenv, say), the server binds it to a place that it can, in a mount namespace of its
own: no other process of the host sees it, and it is gone with the server. Inside a sandbox they are where they are
outside, but for those below a directory that the sandbox has of its own: a checkout in /tmp keeps its packages though
the snippet's /tmp is empty."""

from __future__ import annotations

import ctypes
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
"""An empty directory for everyone else: what is mounted on it is seen by the server that mounted it alone."""
_OWN = ("/tmp/", "/dev/", "/proc/")
"""The sandbox's own: what the host has there is mounted below `_MOVED`."""
_MOVED = "/opt/openrlhf-tir"
_libc = ctypes.CDLL(None, use_errno=True)


class Stage:
    """`mounts` is [(source that the uid can reach, path inside the sandbox)]."""

    def __init__(self, directories: Sequence[str], *, uid: int) -> None:
        self._mounted = False
        self._bound = 0
        self.mounts: list[tuple[str, str]] = []
        self._targets: dict[str, str] = {}
        for path in _outermost(os.path.realpath(d) for d in directories):
            if path.startswith("/usr/"):
                continue
            here = os.geteuid() != 0 or reachable(path)
            self._targets[path] = f"{_MOVED}/{len(self._targets)}" if path.startswith(_OWN) else path
            self.mounts.append((path if here else self._bind(path), self._targets[path]))

    def inside(self, path: str) -> str:
        """What the sandbox calls a path of the host, links resolved, in one of the directories; others stay."""
        path = os.path.realpath(path)
        return next(
            (
                target + path[len(outer) :]
                for outer, target in self._targets.items()
                if f"{path}/".startswith(f"{outer}/")
            ),
            path,
        )

    def add_file(self, path: str, target: str) -> None:
        """Show a file of the host, which every user may read, as `target` inside."""
        path = os.path.realpath(path)
        here = os.geteuid() != 0 or reachable(path)
        self.mounts.append((path if here else self._bind(path), target))

    def _bind(self, path: str) -> str:
        remedy = (
            f"Install Python outside of {path}, run the server as its owner,"
            " or give the container the SYS_ADMIN capability."
        )
        if not self._mounted:
            try:
                os.makedirs(_MOUNT_POINT, mode=0o755, exist_ok=True)
            except OSError as e:
                raise SandboxError(f"cannot create {_MOUNT_POINT}: {e.strerror}. {remedy}") from e
            _call("unshare", _libc.unshare(_CLONE_NEWNS), remedy)
            _call("mount", _libc.mount(b"none", b"/", None, _MS_REC | _MS_SLAVE, None), remedy)
            _call("mount", _libc.mount(b"tmpfs", _MOUNT_POINT.encode(), b"tmpfs", 0, b"mode=755"), remedy)
            self._mounted = True
        target = f"{_MOUNT_POINT}/{self._bound}"
        if os.path.isdir(path):
            os.mkdir(target, 0o755)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        _call("mount", _libc.mount(path.encode(), target.encode(), None, _MS_BIND | _MS_REC, None), remedy)
        self._bound += 1
        return target

    def close(self) -> None:
        if self._mounted:
            _libc.umount2(_MOUNT_POINT.encode(), _MNT_DETACH)
            self._mounted = False


def _outermost(paths) -> list[str]:
    """Without those that lie below another."""
    kept: list[str] = []
    for path in sorted(set(paths)):
        if not kept or not path.startswith(kept[-1] + "/"):
            kept.append(path)
    return kept


def reachable(path: str) -> bool:
    """Whether any user can enter the directory."""
    parts = path.split("/")
    return all(os.stat("/".join(parts[:i]) or "/").st_mode & stat.S_IXOTH for i in range(1, len(parts) + 1))


def _call(name: str, result: int, remedy: str) -> None:
    if result != 0:
        raise SandboxError(f"{name}() failed: {os.strerror(ctypes.get_errno())}. {remedy}")
