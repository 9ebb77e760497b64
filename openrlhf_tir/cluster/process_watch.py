"""Watch a process: its peak memory, its node's, and how it ended, so that an error can say why it died.

    a process of a run   starts a watcher for itself (`watch`). The watcher has its own session and needs nothing from
                         the watched process, so it survives that process's SIGKILL
    the watcher          reads the memory of the process and its descendants (such as vLLM's engine) once a second; when
                         one ends, it writes DIRECTORY/NAME.json, for a descendant DIRECTORY/NAME.PID.json
    the controller       reads the records when a call has failed: cluster/lost.py

How a process ended is exact on Linux 6.15 and later, where a descriptor of the process (pidfd) gives its exit status.
Before, the status can only be read between a process's end and the moment its parent collects it, which is missed now
and then: `signal` and `code` are then both null.

PSS (proportional set size) counts a page that n processes share as 1/n in each, so the PSS of several processes add up
to what they use together. RSS counts it fully in each.

The watcher imports the standard library, this file and machine/control_group.py alone.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import select
import signal
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from ..machine import control_group

KIB = 1024
SAMPLE_S = 1.0
"""Seconds between two readings. The kernel keeps a process's peak, so only the growth in its last second is missed."""
CHILDREN_S = 5.0
"""Seconds between two searches for descendants. One that lives shorter may be missed."""
RECENT_SAMPLES = 10
"""Readings of the node's memory of which the highest is recorded: what was in use just before the end."""
RECENT_KILL_S = 5.0
"""Longest time between the kernel's decision to kill a process for memory, which it counts, and that process's end."""
START_S = 60
"""Deadline of the watcher's own start in seconds. It takes 30 ms, on a busy machine seconds."""
REAPED_S = 2.0
"""Longest time until the parent of an ended process has collected it. Then its exit status can be read."""

_WATCHER = "import sys; sys.path.append(sys.argv[1]); from openrlhf_tir.cluster.process_watch import main; main()"
"""The watcher's program. Its arguments are the directory that the package is in, and those of `main`."""

# linux/pidfd.h: struct pidfd_info of 64 bytes, in which the mask is asked for and the exit code comes back.
_PIDFD_GET_INFO = (3 << 30) | (64 << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_INFO = struct.Struct("=Q52xi")


def pss_bytes(pid: int) -> int | None:
    """Return the PSS of a process in bytes; None if it is gone or may not be read."""
    return _kib(Path(f"/proc/{pid}/smaps_rollup"), "Pss:")


def peak_rss_bytes(pid: int) -> int | None:
    """Return the highest RSS that a process has had, in bytes; None if it is gone."""
    return _kib(Path(f"/proc/{pid}/status"), "VmHWM:")


def node_memory() -> tuple[int, int]:
    """Return (bytes in use, total bytes) of this node, or of this process's control group if that has less.

    Memory that the kernel can take back at once, such as file caches, is not in use.
    """
    info = Path("/proc/meminfo")
    total = _kib(info, "MemTotal:") or 0
    used = total - (_kib(info, "MemAvailable:") or 0)
    if (of_group := control_group.memory()) and of_group[1] < total:
        return of_group
    return used, total


def kernel_kills() -> int:
    """Return how many processes the kernel has killed for memory on this node since it was started."""
    counters = [Path("/proc/vmstat")]
    for group in control_group.groups("memory")[:1]:
        counters += [group / "memory.events", group / "memory.oom_control"]  # of version 2 and of version 1
    return sum(map(_oom_kills_in, counters))


def _oom_kills_in(file: Path) -> int:
    with suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            if line.split()[:1] == ["oom_kill"]:
                return int(line.split()[1])
    return 0


def _kib(file: Path, name: str) -> int | None:
    """Return the figure of the line that begins with `name`, given there in KiB, as bytes."""
    try:
        for line in file.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * KIB
    except (OSError, ValueError, IndexError):
        return None
    return None


def watch(directory: Path, name: str, pid: int | None = None, *, descendants: bool = True) -> bool:
    """Start a watcher for a process and return whether there is one.

    An earlier record of that name is removed. If the watcher cannot be started, that is logged: the run works without
    it.

    Args:
        directory: Where the records are written; it is made if necessary.
        name: Name of the process in the records, such as `learner-rank-0`.
        pid: The process; None for this one.
        descendants: Whether the ends of its descendants matter. A server that runs a model's code ends thousands of
            them as a matter of course.
    """
    pid = os.getpid() if pid is None else pid
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for record in records(directory, name):
            record.unlink(missing_ok=True)
        devnull = subprocess.DEVNULL
        subprocess.run(
            [
                *(sys.executable, "-I", "-S", "-c", _WATCHER, str(Path(__file__).parents[2])),
                *(str(pid), str(directory.absolute()), name, str(int(descendants))),
            ],
            start_new_session=True,
            stdin=devnull,
            stdout=devnull,
            stderr=devnull,
            check=True,
            timeout=START_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        logging.getLogger(__name__).warning("how %s ends will not be known, it cannot be watched: %s", name, error)
        return False
    return True


def records(directory: Path, name: str) -> list[Path]:
    """Return the existing records of a process and of its descendants, its own first."""
    own_record = directory / f"{name}.json"
    return [path for path in (own_record, *sorted(directory.glob(f"{name}.*.json"))) if path.exists()]


class _KernelKills:
    """The kernel's count of processes killed for memory, during the last RECENT_KILL_S seconds."""

    def __init__(self) -> None:
        self._counts: list[tuple[float, int]] = []

    def look(self, now: float, count: int) -> None:
        """Add a reading of the count."""
        old = [at for at, _ in self._counts if now - at > RECENT_KILL_S]
        # The newest of the old readings is the count at the beginning of the period.
        self._counts = [*self._counts[max(0, len(old) - 1) :], (now, count)]

    def explain(self, status: int | None) -> bool:
        """Return True if a wait status may be the kernel's work: the count rose, and the process got SIGKILL."""
        if status is None or os.WTERMSIG(status) != signal.SIGKILL:
            return False
        return self._counts[-1][1] > self._counts[0][1]


class _Watched:
    """A process with its descriptor, which stays valid after its end, and its highest memory so far."""

    def __init__(self, pid: int, name: str) -> None:
        self.pid = pid
        self.name = name
        self.descriptor = os.pidfd_open(pid)
        self.command = _command(pid)
        self.peak = peak_rss_bytes(pid) or 0

    def look(self) -> None:
        """Update the peak."""
        self.peak = max(self.peak, peak_rss_bytes(self.pid) or 0)


def _command(pid: int) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").split()
        return " ".join(words)[:200]
    return ""


def _descendants(pid: int) -> list[int]:
    pids = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in task.read_text().split():
                pids += [int(child), *_descendants(int(child))]
    return pids


def _status_of_zombie(pid: int) -> int | None:
    """Return the wait status of an ended process that its parent has not collected yet."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if fields[0] == "Z":
            return int(fields[49])
    return None


def _status_of(watched: _Watched) -> int | None:
    """Return the wait status of an ended process; None if it cannot be known."""
    status = _status_of_zombie(watched.pid)
    deadline = time.monotonic() + REAPED_S
    while status is None and time.monotonic() < deadline:
        info = bytearray(_PIDFD_INFO.pack(_PIDFD_INFO_EXIT, 0))
        try:
            fcntl.ioctl(watched.descriptor, _PIDFD_GET_INFO, info)
        except OSError:
            return None  # a kernel before 6.15
        mask, code = _PIDFD_INFO.unpack(info)
        if mask & _PIDFD_INFO_EXIT:
            return code
        time.sleep(0.01)
    return status


def _watch(root: _Watched, directory: Path, *, descendants: bool) -> None:
    """Watch a process to its end and write its record, and those of descendants that end before it or with it."""
    pid, name = root.pid, root.name
    children: dict[int, _Watched] = {}
    poll = select.poll()
    poll.register(root.descriptor, select.POLLIN)
    kills = _KernelKills()
    used: list[int] = []
    next_search = 0.0
    while True:
        now = time.monotonic()
        if descendants and now >= next_search:
            next_search = now + CHILDREN_S
            for child in _descendants(pid):
                if child not in children and child != os.getpid():
                    with suppress(OSError):
                        children[child] = _Watched(child, f"{name}.{child}")
                        poll.register(children[child].descriptor, select.POLLIN)
        kills.look(now, kernel_kills())
        in_use, total = node_memory()
        used = [*used[-RECENT_SAMPLES:], in_use]
        for watched in (root, *children.values()):
            watched.look()
        ended = {descriptor for descriptor, _ in poll.poll(SAMPLE_S * 1000)}
        for watched in [w for w in (*children.values(), root) if w.descriptor in ended]:
            poll.unregister(watched.descriptor)
            status = _status_of(watched)
            kills.look(time.monotonic(), kernel_kills())
            record = {
                "name": watched.name,
                "pid": watched.pid,
                "command": watched.command,
                "signal": None if status is None else os.WTERMSIG(status) or None,
                "code": None if status is None or os.WTERMSIG(status) else os.WEXITSTATUS(status),
                "by_kernel_for_memory": kills.explain(status),
                "peak_bytes": watched.peak,
                "node": os.uname().nodename,
                "node_used_bytes": max(used),
                "node_total_bytes": total,
                "time": time.time(),
            }
            # A descendant that ended by itself and without a signal explains nothing.
            if watched is root or record["signal"] or status is None:
                _write(directory / f"{watched.name}.json", record)
            os.close(watched.descriptor)
            children.pop(watched.pid, None)
        if root.descriptor in ended:
            return


def _write(path: Path, record: dict[str, object]) -> None:
    partial = path.with_name(f".{path.name}")
    partial.write_text(json.dumps(record))
    partial.replace(path)


def main() -> None:
    """Watch the process that the command line names: process id, directory, name, and 1 with its descendants."""
    pid, directory, name, descendants = sys.argv[-4:]
    # Opened before the fork: when the starter sees this process exit, the watch has begun.
    watched_process = _Watched(int(pid), name)
    # The watcher must not be a child of the watched process: Ray would end both together.
    if os.fork():
        os._exit(0)
    with suppress(OSError):  # the run's directory is gone
        _watch(watched_process, Path(directory), descendants=descendants == "1")
