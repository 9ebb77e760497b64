"""Memory of a run: /proc -> the sum of PSS over its processes -> the peak. Linux only, no dependency.

PSS (proportional set size) divides a shared page by its users, so the sum over processes is what the run really holds. Which processes: the
launcher and its descendants, and whatever carries a marker in its command line (the session directory of Ray, whose daemons are re-parented)
and their descendants. A process once seen stays one of ours when it is re-parented.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Self

KIB_PER_GIB = 1 << 20

Identity = tuple[int, int]
"""(pid, start time in clock ticks): pids are reused, this pair is not."""


class PssSampler:
    """Samples the total in a background thread; a context manager. `peak_gib` holds at any time, `peak_by_process` says who it was.

    What is not covered: processes that live shorter than `interval_s`, and those whose smaps we may not read (a sandbox in a user namespace of
    its own); both are the snippets that tools run.
    """

    def __init__(self, root_pid: int | None = None, interval_s: float = 2.0):
        self.peak_gib = 0.0
        self.peak_by_process: dict[str, float] = {}
        self._root = root_pid or os.getpid()
        self._interval_s = interval_s
        self._markers: list[str] = []
        self._known: set[Identity] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pss-sampler", daemon=True)

    def watch(self, marker: str) -> None:
        """Also count processes with `marker` in their command line, e.g. Ray's session directory, and their descendants."""
        self._markers.append(marker)

    def sample(self) -> float:
        """The sum of PSS right now, in GiB; raises the peak."""
        with self._lock:
            by_process: dict[str, float] = {}
            for pid in self._members():
                if kib := _pss_kib(pid):
                    by_process[f"{_name(pid)} ({pid})"] = kib / KIB_PER_GIB
            total = sum(by_process.values())
            if total > self.peak_gib:
                self.peak_gib, self.peak_by_process = total, by_process
            return total

    def _members(self) -> set[int]:
        parents = _process_table()
        ours = {identity[0] for identity in self._known & set(parents)}
        for pid, _ in parents:
            if pid == self._root or any(marker in _command_line(pid) for marker in self._markers):
                ours.add(pid)
        children: dict[int, list[int]] = {}
        for (pid, _), parent in parents.items():
            children.setdefault(parent, []).append(pid)
        todo = list(ours)
        while todo:
            fresh = [child for child in children.get(todo.pop(), ()) if child not in ours]
            ours.update(fresh)
            todo += fresh
        self._known = {identity for identity in parents if identity[0] in ours}
        return ours

    def _run(self) -> None:
        while not self._stop.is_set():
            self.sample()
            self._stop.wait(self._interval_s)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc) -> None:
        self._stop.set()
        self._thread.join()


def _read(pid: int, name: str) -> bytes:
    """A file of /proc/<pid>; empty when the process is gone or not ours to read, which is ordinary while sampling."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _process_table() -> dict[Identity, int]:
    """Parent pid of every process."""
    table: dict[Identity, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (stat := _read(int(entry), "stat")):
            # The name in parentheses may hold spaces; the fields after it are: state, ppid, ..., start time (the 20th).
            fields = stat[stat.rfind(b")") + 2 :].split()
            table[int(entry), int(fields[19])] = int(fields[1])
    return table


def _command_line(pid: int) -> str:
    return _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")


def _name(pid: int) -> str:
    words = _command_line(pid).split()
    return words[0].rsplit("/", 1)[-1] if words else _read(pid, "comm").decode(errors="replace").strip()


def _pss_kib(pid: int) -> int:
    for line in _read(pid, "smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1])
    return 0
