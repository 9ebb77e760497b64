"""Run lock: one controller at a time writes a run directory.

    with run_lock(run_dir, wait_s=0): ...        run_dir/run.lock: a flock while the process lives, whatever ends it

The kernel gives the lock up with the process, so a crash leaves nothing that blocks; the file stays, and says whose it
was. On NFS Linux turns flock into a lock at the file server, so that it holds between nodes; there it may outlive a
node that died until the server notices (some 90 s with NFSv4). Where a file system has no locks the run is refused by
name, because without one two controllers would go unnoticed. `audit`, `report` and `play` only read, `control` is meant
for a run that is running: they take no lock."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ..errors import ConfigError
from ..waiting.backoff import backoff_s

FILE = "run.lock"
MAX_PAUSE_S = 5.0
"""Between two tries of one that waits: flock has no deadline of its own."""
HELD = (errno.EWOULDBLOCK, errno.EACCES)


@contextmanager
def run_lock(
    run_dir: Path,
    wait_s: float = 0.0,
    *,
    flock: Callable[[int, int], None] = fcntl.flock,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Hold the lock of `run_dir`, which is made. Raises ConfigError when another process holds it for longer than
    `wait_s`, and says which, or when the file system has no locks."""
    path = run_dir / FILE
    # not inherited by what this process starts: the lock ends with this process, not with its children
    with _opened(path) as file:
        _take(file, path, clock() + wait_s, flock, clock, sleep)
        file.truncate(0)
        file.write(
            json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")})
            + "\n"
        )
        file.flush()
        yield


def is_held(run_dir: Path) -> bool:
    """Return True if a process works in the directory."""
    try:
        file = (run_dir / FILE).open()
    except OSError:
        return False
    with file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as e:
            return e.errno in HELD
    return False


def _opened(path: Path) -> IO[str]:
    """Raises ConfigError where the directory cannot be made, or takes no files."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+")
    except OSError as e:
        raise ConfigError(
            f"{path.parent} cannot be used as a directory to write in: {e.strerror or e}. Choose another."
        ) from None


def _take(file: IO[str], path: Path, give_up: float, flock, clock, sleep) -> None:
    failures = 0
    while True:
        try:
            return flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            if e.errno not in HELD:
                raise ConfigError(
                    f"{path} cannot be locked: {e.strerror}. Nothing would keep a second run out of this directory. "
                    "Choose a --run-dir on a file system with locks (NFS: mounted without nolock)."
                ) from e
        left = give_up - clock()
        if left <= 0:
            raise ConfigError(
                f"{path.parent} is in use by {_holder(path)}. Stop that run, or choose another --run-dir."
            )
        sleep(min(left, backoff_s(failures, cap_s=MAX_PAUSE_S)))
        failures += 1


def _holder(path: Path) -> str:
    """Who wrote the lock file, for a person. It may just be writing it."""
    try:
        said = json.loads(path.read_text())
        return f"process {said['pid']} on {said['host']}, since {said['since']}"
    except (OSError, ValueError, LookupError, TypeError):
        return "another process"
