"""Memory of a run: the sum of PSS over its processes -> the peak. Linux only.

PSS (proportional set size) divides a shared page by its users, so the sum over processes is what the run really holds.
Which processes: the launcher and its descendants, and whatever carries a marker in its command line (the session
directory of Ray, whose daemons are re-parented) and their descendants. A process once seen stays one of ours when it is
re-parented.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple, Self

import psutil

BYTES_PER_GIB = 1 << 30
SHARE = 0.005
"""The most of a core that sampling takes: to read a process's PSS the kernel walks its page tables, which takes it
milliseconds, and a run may have hundreds of processes."""


class Seen(NamedTuple):
    process: psutil.Process
    """The caller's own object, equal to others of the same pid and start time."""
    ppid: int
    command: list[str]
    """Empty where it may not be read."""


def everybody() -> Iterator[Seen]:
    """All processes but those that are gone meanwhile. Not psutil.process_iter, whose objects all threads share: what
    one has asked for takes the place of what another reads in `info`."""
    for pid in psutil.pids():
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            told = process.as_dict(["ppid", "cmdline"])
            yield Seen(process, told["ppid"] or 0, told["cmdline"] or [])


class PssSampler:
    """Samples the total in a background thread, every `interval_s` or as seldom as its share of a core asks for; a
    context manager. `peak_gib` holds at any time, `peak_by_process` says who it was.

    What is not covered: processes that live shorter than that, and those whose smaps we may not read (a sandbox
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
            for member in self._members():
                if pss := _pss(member.process):
                    by_process[f"{_name(member)} ({member.process.pid})"] = pss / BYTES_PER_GIB
            total = sum(by_process.values())
            if total > self.peak_gib:
                self.peak_gib, self.peak_by_process = total, by_process
            return total

    def _members(self) -> list[Seen]:
        children: dict[int, list[Seen]] = {}
        ours: dict[psutil.Process, Seen] = {}
        for seen in everybody():
            children.setdefault(seen.ppid, []).append(seen)
            if seen.process in self._known or seen.process.pid == self._root or self._marked(seen):
                ours[seen.process] = seen
        todo = list(ours)
        while todo:
            fresh = {c.process: c for c in children.get(todo.pop().pid, ()) if c.process not in ours}
            ours |= fresh
            todo += fresh
        self._known = {*ours}
        return [*ours.values()]

    def _marked(self, seen: Seen) -> bool:
        command = " ".join(seen.command)
        return any(marker in command for marker in self._markers)

    def _run(self) -> None:
        while not self._stop.is_set():
            before = time.thread_time()
            self.sample()
            self._stop.wait(max(self._interval_s, (time.thread_time() - before) / SHARE))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc) -> None:
        self._stop.set()
        self._thread.join()


def _name(seen: Seen) -> str:
    """The program of its command line; its own name where it has none."""
    words = " ".join(seen.command).split()
    try:
        return words[0].rsplit("/", 1)[-1] if words else seen.process.name()
    except psutil.Error:
        return "?"


def _pss(process: psutil.Process) -> int:
    """Bytes; 0 when the process is gone or not ours to read, which is ordinary while sampling."""
    try:
        return process.memory_full_info().pss
    except psutil.Error:
        return 0
