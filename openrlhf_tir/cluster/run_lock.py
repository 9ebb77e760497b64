"""The run lock: only one controller at a time writes a run directory.

    with run_lock(run_dir, wait_s=0): ...        an flock on run_dir/run.lock, held while the process lives

The kernel releases the lock with the process, however it ends, so a crash leaves nothing that blocks. The file stays
and says whose it was. On NFS Linux turns flock into a lock at the file server, so it holds between nodes; there it may
outlive a node that died until the server notices (about 90 s with NFSv4). On a file system without locks the run is
refused, because two controllers would go unnoticed. `audit`, `report` and `play` only read, and `control` is meant for
a running run: they take no lock.
"""

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
"""Longest pause in seconds between two tries, because flock has no deadline of its own."""
HELD = (errno.EWOULDBLOCK, errno.EACCES)
"""Errors of flock that mean that another process holds the lock."""


@contextmanager
def run_lock(
    run_dir: Path,
    wait_s: float = 0.0,
    *,
    flock: Callable[[int, int], None] = fcntl.flock,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Hold the lock of a run directory, which is made if necessary.

    Args:
        run_dir: The run directory.
        wait_s: Seconds to wait while another process holds the lock.
        flock: Takes a lock, as fcntl.flock does.
        clock: Returns seconds.
        sleep: Sleeps for a number of seconds.

    Raises:
        ConfigError: Another process holds the lock for longer (the message names it), or the file system has no locks.
    """
    path = run_dir / FILE
    # Child processes do not inherit the file: the lock ends with this process, not with its children.
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
        except OSError as error:
            return error.errno in HELD
    return False


def _opened(path: Path) -> IO[str]:
    """Open the lock file. Raises ConfigError if the directory cannot be made, or takes no files."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+")
    except OSError as error:
        raise ConfigError(
            f"{path.parent} cannot be used as a directory to write in: {error.strerror or error}. Choose another.",
            code="run_dir",
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
                    "Choose a --run-dir on a file system with locks (NFS: mounted without nolock).",
                    code="run_dir",
                ) from e
        left = give_up - clock()
        if left <= 0:
            raise ConfigError(
                f"{path.parent} is in use by {_holder(path)}. Stop that run, or choose another --run-dir.",
                code="run_dir_in_use",
            )
        sleep(min(left, backoff_s(failures, cap_s=MAX_PAUSE_S)))
        failures += 1


def _holder(path: Path) -> str:
    """Return who wrote the lock file, for a message. The holder may be writing it at this moment."""
    try:
        record = json.loads(path.read_text())
        return f"process {record['pid']} on {record['host']}, since {record['since']}"
    except (OSError, ValueError, LookupError, TypeError):
        return "another process"
