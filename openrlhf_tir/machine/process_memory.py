"""The memory of a run: the sum of PSS over its processes, sampled to find the peak. Linux only.

PSS (proportional set size) divides a shared page by the number of its users, so the sum over processes is what the run
really uses. The processes of a run are the launcher, every process that has a marker in its command line (the session
directory of Ray, whose daemons are re-parented), and the descendants of both. A process that was counted once still
counts when it is re-parented.
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
"""The largest share of a core that a run's own sampling may take. To read a process's PSS the kernel walks its page
tables, which takes milliseconds, and a run may have hundreds of processes."""


class ProcessInfo(NamedTuple):
    """A process of this machine.

    Attributes:
        process: The caller's own object, equal to others of the same pid and start time.
        ppid: Process id of its parent.
        command: Its command line; [] if it may not be read.
    """

    process: psutil.Process
    ppid: int
    command: list[str]


def all_processes() -> Iterator[ProcessInfo]:
    """Yield all processes, except those that ended meanwhile.

    This does not use psutil.process_iter, because all threads share its objects: one thread's request would replace
    what another reads in `info`.
    """
    for pid in psutil.pids():
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            info = process.as_dict(["ppid", "cmdline"])
            yield ProcessInfo(process, info["ppid"] or 0, info["cmdline"] or [])


class RunProcesses:
    """Finds the processes of a run."""

    def __init__(self, root_pid: int) -> None:
        """`root_pid`: the launcher."""
        self._root = root_pid
        self._markers: list[str] = []
        self._known: set[psutil.Process] = set()
        """Processes compare equal if pid and start time do, because pids are reused."""

    def mark(self, marker: str) -> None:
        """Also find processes with `marker` in their command line, such as Ray's session directory, and
        descendants."""
        self._markers.append(marker)

    def find(self) -> list[ProcessInfo]:
        """Return the processes that live now."""
        children: dict[int, list[ProcessInfo]] = {}
        members: dict[psutil.Process, ProcessInfo] = {}
        for info in all_processes():
            children.setdefault(info.ppid, []).append(info)
            if info.process in self._known or info.process.pid == self._root or self._marked(info):
                members[info.process] = info
        todo = list(members)
        while todo:
            new_members = {
                child.process: child for child in children.get(todo.pop().pid, ()) if child.process not in members
            }
            members |= new_members
            todo += new_members
        self._known = {*members}
        return [*members.values()]

    def _marked(self, info: ProcessInfo) -> bool:
        command = " ".join(info.command)
        return any(marker in command for marker in self._markers)


class PssSampler:
    """Samples the memory of a run in a background thread; a context manager.

    It samples every `interval_s`, or less often if that would take more than `max_share` of a core. Two kinds of
    processes are not covered: those that live shorter than the interval, and those whose memory map may not be read (a
    sandbox in a user namespace of its own). Both are the snippets that tools run.

    Attributes:
        peak_gib: Largest sum so far, in GiB.
        peak_by_process: Process -> GiB at that moment.
    """

    def __init__(self, root_pid: int | None = None, interval_s: float = 2.0, max_share: float = SHARE):
        self.peak_gib = 0.0
        self.peak_by_process: dict[str, float] = {}
        self._processes = RunProcesses(root_pid or os.getpid())
        self._interval_s = interval_s
        self._max_share = max_share
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pss-sampler", daemon=True)

    def watch(self, marker: str) -> None:
        """Also count processes with `marker` in their command line, such as Ray's session directory, and
        descendants."""
        self._processes.mark(marker)

    def sample(self) -> float:
        """Return the sum of PSS now, in GiB, and update the peak."""
        with self._lock:
            by_process: dict[str, float] = {}
            for member in self._processes.find():
                if pss := _pss(member.process):
                    by_process[f"{_name(member)} ({member.process.pid})"] = pss / BYTES_PER_GIB
            total = sum(by_process.values())
            if total > self.peak_gib:
                self.peak_gib = total
                self.peak_by_process = by_process
            return total

    def _run(self) -> None:
        while not self._stop.is_set():
            before = time.thread_time()
            self.sample()
            self._stop.wait(max(self._interval_s, (time.thread_time() - before) / self._max_share))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc) -> None:
        self._stop.set()
        self._thread.join()


def _name(info: ProcessInfo) -> str:
    """Return the program in a process's command line; the process's own name if it has none."""
    words = " ".join(info.command).split()
    try:
        return words[0].rsplit("/", 1)[-1] if words else info.process.name()
    except psutil.Error:
        return "?"


def _pss(process: psutil.Process) -> int:
    """Return the PSS of a process in bytes; 0 if it ended or may not be read, which is ordinary while sampling."""
    try:
        return process.memory_full_info().pss
    except psutil.Error:
        return 0
