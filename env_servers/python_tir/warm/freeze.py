"""Freeze: stops every thread of a session between two cells, so that nothing in it can start it again.

A stop signal would not do: a timer, a file's event or a neighbour that was slow to stop sends SIGCONT. A thread that is
traced and interrupted runs on when its tracer lets it, and for no signal but SIGKILL, which a stopped session has
nobody to send.

The tracer is the session's PID 1. Cells cannot trace (seccomp), so nobody else does.
"""

import contextlib
import errno
import os
import time

FREEZE_S = 1.0
"""How long the threads of a session may take to stop. Hundreds take some milliseconds; who makes new ones all the time
does not end."""
YIELDS = 50
PAUSE_S = 0.0005
"""Between two looks at threads that are about to stop the core is left to them, and after so many looks for a while:
the kernel has no event for it."""
_WALL = 0x40000000
_EVENT_STOP = 128
_GONE = b"ZX"
_WAITS_FOR_EXEC = b"D"
"""State letters: ended; in the kernel, as the parent of a vfork is."""


class Freezer:
    """One session's. `freeze` and `thaw` take turns, called by the same thread."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.stopped = {}  # thread -> signal that it was about to get

    def freeze(self, is_ready):
        """Whether all is stopped, and `is_ready` is true of it. If not, the session cannot go on: within FREEZE_S it
        came to no rest."""
        for turn in self.pauses():
            if turn < YIELDS and not is_ready():  # as good as there: stopped now, it would have to go on once more
                continue
            if self._stop_all() and is_ready():
                return True
            self.thaw()
        return False

    def pauses(self):
        """Counts looks, and ends after FREEZE_S."""
        deadline = time.monotonic() + FREEZE_S
        turn = 0
        while time.monotonic() < deadline:
            yield turn
            if turn < YIELDS:
                os.sched_yield()
            else:
                time.sleep(PAUSE_S)
            turn += 1

    def thaw(self):
        while self.stopped:
            thread, signal_number = self.stopped.popitem()
            try:
                self.kernel.ptrace(self.kernel.PTRACE_DETACH, thread, signal_number)
            except OSError:  # killed meanwhile, from outside: its parent learns of it once its tracer has
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(thread, os.WNOHANG | _WALL)

    def _stop_all(self):
        """Until a look at all threads finds none that is not stopped. False: start again, a thread waits in the kernel
        for one that is stopped."""
        pending: set[int] = set()
        for _ in self.pauses():
            threads = {thread: state for thread, state in _threads() if state not in _GONE}
            new = [thread for thread in threads if thread not in self.stopped and thread not in pending]
            pending.update(thread for thread in new if self._seize(thread))
            pending -= {thread for thread in pending if thread not in threads or self._has_stopped(thread)}
            if not pending and all(thread in self.stopped for thread in threads):
                return True
            if pending and all(threads[thread] == _WAITS_FOR_EXEC for thread in pending):
                break
        return self._let_go(pending)

    def _seize(self, thread):
        try:
            self.kernel.ptrace(self.kernel.PTRACE_SEIZE, thread)
            self.kernel.ptrace(self.kernel.PTRACE_INTERRUPT, thread)
        except OSError as e:
            if e.errno not in (errno.ESRCH, errno.EPERM):  # ended, or ending: the next look will tell
                raise
            return False
        return True

    def _has_stopped(self, thread):
        try:
            how = os.waitid(os.P_PID, thread, os.WSTOPPED | os.WNOHANG | _WALL)
        except ChildProcessError:
            return True  # ended
        if how is None or how.si_pid == 0:
            return False
        self.stopped[thread] = 0 if how.si_status >> 8 == _EVENT_STOP else how.si_status & 0x7F
        return True

    def _let_go(self, pending):
        """These were seized but have not stopped, and only a stopped thread can be let go: the others go on first, and
        then these stop."""
        self.thaw()
        for _ in self.pauses():
            alive = dict(_threads())
            pending = {
                thread
                for thread in pending
                if thread in alive and alive[thread] not in _GONE and not self._has_stopped(thread)
            }
            self.thaw()
            if not pending:
                break
        return False


def _threads():
    """(thread, state letter) of everything in this PID namespace but its PID 1."""
    for pid in os.listdir("/proc"):
        if pid.isdigit() and pid != "1":
            try:
                for thread in os.listdir(f"/proc/{pid}/task"):
                    with open(f"/proc/{pid}/task/{thread}/stat", "rb") as f:  # a thread's name may be any bytes
                        yield int(thread), f.read().rpartition(b")")[2].split()[0]
            except OSError:  # ended meanwhile
                continue
