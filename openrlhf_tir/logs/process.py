"""Memory of a run: the sum of PSS over its processes -> the peak. Linux only.

PSS (proportional set size) divides a shared page by its users, so the sum over processes is what the run really holds.
Which processes: the launcher and its descendants, and whatever carries a marker in its command line (the session
directory of Ray, whose daemons are re-parented) and their descendants. A process once seen stays one of ours when it is
re-parented.
"""

from __future__ import annotations

import os
import threading
from typing import Self

import psutil

BYTES_PER_GIB = 1 << 30


class PssSampler:
    """Samples the total in a background thread; a context manager. `peak_gib` holds at any time, `peak_by_process` says
    who it was.

    What is not covered: processes that live shorter than `interval_s`, and those whose smaps we may not read (a sandbox
    in a user namespace of its own); both are the snippets that tools run.
    """

    def __init__(self, root_pid: int | None = None, interval_s: float = 2.0):
        self.peak_gib = 0.0
        self.peak_by_process: dict[str, float] = {}
        self._root = root_pid or os.getpid()
        self._interval_s = interval_s
        self._markers: list[str] = []
        self._known: set[psutil.Process] = set()
        """Equal when pid and start time are: pids are reused."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pss-sampler", daemon=True)

    def watch(self, marker: str) -> None:
        """Also count processes with `marker` in their command line, as Ray's session directory, and descendants."""
        self._markers.append(marker)

    def sample(self) -> float:
        """The sum of PSS right now, in GiB; raises the peak."""
        with self._lock:
            by_process: dict[str, float] = {}
            for process in self._members():
                if pss := _pss(process):
                    by_process[f"{_name(process)} ({process.pid})"] = pss / BYTES_PER_GIB
            total = sum(by_process.values())
            if total > self.peak_gib:
                self.peak_gib, self.peak_by_process = total, by_process
            return total

    def _members(self) -> set[psutil.Process]:
        children: dict[int, list[psutil.Process]] = {}
        # a process that is gone meanwhile is left out, what may not be read is None
        everybody = list(psutil.process_iter(["ppid", "cmdline"]))
        for process in everybody:
            children.setdefault(process.info["ppid"], []).append(process)
        ours = {p for p in everybody if p in self._known or p.pid == self._root or self._marked(p)}
        todo = list(ours)
        while todo:
            fresh = [child for child in children.get(todo.pop().pid, ()) if child not in ours]
            ours.update(fresh)
            todo += fresh
        self._known = ours
        return ours

    def _marked(self, process: psutil.Process) -> bool:
        command = " ".join(process.info["cmdline"] or ())
        return any(marker in command for marker in self._markers)

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


def _name(process: psutil.Process) -> str:
    """The program of its command line; its own name where it has none."""
    words = " ".join(process.info["cmdline"] or ()).split()
    try:
        return words[0].rsplit("/", 1)[-1] if words else process.name()
    except psutil.Error:
        return "?"


def _pss(process: psutil.Process) -> int:
    """Bytes; 0 when the process is gone or not ours to read, which is ordinary while sampling."""
    try:
        return process.memory_full_info().pss
    except psutil.Error:
        return 0
