"""Stop every thread of a session between two cells, so that nothing in it can start it again.

A stop signal would not do: a timer, the event of a file or a thread that was slow to stop sends SIGCONT. A thread that
is traced and interrupted runs on when its tracer lets it, and for no signal but SIGKILL, which nobody in a stopped
session can send. The tracer is the session's PID 1. Cells cannot trace (seccomp), so nobody else does.
"""

import contextlib
import errno
import os
import time

FREEZE_S = 2.0
"""Seconds in which the threads of a session must stop. Hundreds of them take some milliseconds; a program that starts
new ones all the time never stops."""
LOOK_S = 0.05
"""Seconds that one look counts for at most. A look takes milliseconds of CPU: a tracer that needed longer had no core,
and the session may have stopped long ago."""
YIELDS = 50
"""Number of looks at stopping threads between which the core is only yielded. After them the tracer sleeps between
looks: the kernel has no event for the stop."""
PAUSE_S = 0.0005
"""Seconds of that sleep."""
_WALL = 0x40000000
_EVENT_STOP = 128
_GONE = b"ZX"
_WAITS_FOR_EXEC = b"D"
"""State letters in /proc: _GONE has ended, _WAITS_FOR_EXEC waits in the kernel, as the parent of a vfork does."""


class Freezer:
    """Freezes and thaws one session. Both are called by the same thread, in turn."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.stopped = {}
        """For each stopped thread the signal that it was about to get; 0 if there was none."""
        self._looked_s = 0.0
        self._last_look = time.monotonic()

    def freeze(self, is_ready):
        """Stop everything. Return False if the session did not come to rest within FREEZE_S and cannot go on.

        Args:
            is_ready: Returns True if the session may be stopped as it is now.
        """
        for turn in self.pauses():
            if turn < YIELDS and not is_ready():  # it soon will be: stopped now, it would have to be thawed again
                continue
            if self._stop_all() and is_ready():
                return True
            self.thaw()
        return False

    def pauses(self):
        """Count the looks at the threads, with a pause after each. Ends after FREEZE_S."""
        deadline = self._look_time() + FREEZE_S
        turn = 0
        while self._look_time() < deadline:
            yield turn
            if turn < YIELDS:
                os.sched_yield()
            else:
                time.sleep(PAUSE_S)
            turn += 1

    def _look_time(self):
        """Return the seconds for which this process has looked, of each look LOOK_S at most."""
        now = time.monotonic()
        self._looked_s += min(now - self._last_look, LOOK_S)
        self._last_look = now
        return self._looked_s

    def thaw(self):
        """Let all stopped threads run, with the signals that they were about to get."""
        while self.stopped:
            thread, signal_number = self.stopped.popitem()
            try:
                self.kernel.ptrace(self.kernel.PTRACE_DETACH, thread, signal_number)
            except OSError:  # killed from outside: its parent learns of it once the tracer has waited for it
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(thread, os.WNOHANG | _WALL)

    def _stop_all(self):
        """Stop all threads and look until none is found that runs.

        Return False if the caller must start again, because a thread waits in the kernel for one that is stopped.
        """
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
        """Trace and interrupt a thread. Return False if it has ended."""
        try:
            self.kernel.ptrace(self.kernel.PTRACE_SEIZE, thread)
            self.kernel.ptrace(self.kernel.PTRACE_INTERRUPT, thread)
        except OSError as e:
            if e.errno not in (errno.ESRCH, errno.EPERM):  # ended, or ending, which the next look will show
                raise
            return False
        return True

    def _has_stopped(self, thread):
        """Return True if a seized thread has stopped or ended."""
        try:
            event = os.waitid(os.P_PID, thread, os.WSTOPPED | os.WNOHANG | _WALL)
        except ChildProcessError:
            return True  # ended
        if event is None or event.si_pid == 0:
            return False
        self.stopped[thread] = 0 if event.si_status >> 8 == _EVENT_STOP else event.si_status & 0x7F
        return True

    def _let_go(self, pending):
        """Let go of threads that were seized but have not stopped.

        Only a stopped thread can be let go: the others are thawed first, and then these stop.
        """
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
    """Yield thread id and state letter of everything in this PID namespace except its PID 1."""
    for pid in os.listdir("/proc"):
        if pid.isdigit() and pid != "1":
            try:
                for thread in os.listdir(f"/proc/{pid}/task"):
                    with open(f"/proc/{pid}/task/{thread}/stat", "rb") as f:  # a thread's name may be any bytes
                        yield int(thread), f.read().rpartition(b")")[2].split()[0]
            except OSError:  # the process has ended
                continue
