"""Stage: makes the interpreter's directories reachable for an unprivileged uid.

A server that runs as root drops to an unprivileged uid before bubblewrap starts. When Python lives below a directory that this uid
cannot enter (/root/.pyenv, say), the server binds it to a place that it can, in a mount namespace of its own: no other process of
the host sees it, and it is gone with the server.
"""

from __future__ import annotations

import ctypes
import os
import stat
import tempfile
from collections.abc import Sequence

from .sandbox import SandboxError

_CLONE_NEWNS, _MS_BIND, _MS_REC, _MS_SLAVE, _MNT_DETACH = 0x20000, 4096, 16384, 1 << 19, 2
_libc = ctypes.CDLL(None, use_errno=True)


class Stage:
    """`mounts` is [(source that the uid can reach, path inside the sandbox)]."""

    def __init__(self, directories: Sequence[str], *, uid: int) -> None:
        self._temp: str | None = None
        self._bound: list[str] = []
        self.mounts: list[tuple[str, str]] = []
        for path in _outermost(os.path.realpath(d) for d in directories):
            if path.startswith("/usr/"):
                continue
            reachable = os.geteuid() != 0 or _world_can_enter(path)
            self.mounts.append((path if reachable else self._bind(path), path))

    def _bind(self, path: str) -> str:
        remedy = f"Install Python outside of {path}, run the server as its owner, or give the container the SYS_ADMIN capability."
        if self._temp is None:
            _call("unshare", _libc.unshare(_CLONE_NEWNS), remedy)
            _call("mount", _libc.mount(b"none", b"/", None, _MS_REC | _MS_SLAVE, None), remedy)
            self._temp = tempfile.mkdtemp(prefix="tir-stage-")
            os.chmod(self._temp, 0o755)
        target = f"{self._temp}/{len(self._bound)}"
        os.mkdir(target, 0o755)
        _call("mount", _libc.mount(path.encode(), target.encode(), None, _MS_BIND | _MS_REC, None), remedy)
        self._bound.append(target)
        return target

    def close(self) -> None:
        for target in self._bound:
            _libc.umount2(target.encode(), _MNT_DETACH)
        if self._temp is not None:
            for target in self._bound:
                os.rmdir(target)  # only ever an empty mount point: never a recursive delete where a bind could be
            os.rmdir(self._temp)
        self._bound, self._temp = [], None


def _outermost(paths) -> list[str]:
    """Without those that lie below another."""
    kept: list[str] = []
    for path in sorted(set(paths)):
        if not kept or not path.startswith(kept[-1] + "/"):
            kept.append(path)
    return kept


def _world_can_enter(path: str) -> bool:
    parts = path.split("/")
    return all(os.stat("/".join(parts[:i]) or "/").st_mode & stat.S_IXOTH for i in range(1, len(parts) + 1))


def _call(name: str, result: int, remedy: str) -> None:
    if result != 0:
        raise SandboxError(f"{name}() failed: {os.strerror(ctypes.get_errno())}. {remedy}")
