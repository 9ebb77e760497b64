"""Session: a slot (PID 1 of namespaces of its own) around one interpreter that keeps its state from cell to cell.

    request   "<id> <seconds>" with descriptors: the cell (a read-only memory file), stdout, stderr; handed on to the
              notebook
    "K"       end the session now
    reply     "<id> <wait status> <reason> <report> <alive>"; reason: end | time | cancel | lost

Between two cells every thread of the session is stopped (`freeze`): nothing runs, prints or grows that no call pays
for. A cell that misses its time, and an interpreter that ends or breaks the agreement, end the session: everything in
it is killed and `alive` is 0. `lost` is an interpreter that was killed while it was stopped: from outside, since
nothing inside could.

A cell has ended when its interpreter's main thread waits for the next one. The notebook's word for it counts only then:
code that writes such a word itself and goes on has broken the agreement. The word must come from that process, and bear
the id of this very request, which nobody knew before. How the cell ended (the word's exit code) is the snippet's word,
as an exit code is."""

import contextlib
import os
import select
import socket
import struct
import sys

WORD = 64
"""No message of the notebook is longer."""
_CREDENTIALS = struct.Struct("3i")


def serve(slot, modules, options):
    """Returns in the notebook's process only, with the Notebook."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    pid = os.fork()
    if pid == 0:
        ours.close()
        return modules["notebook"].Notebook(slot, theirs, modules["slot"], options)
    theirs.close()
    if ours.recv(WORD) != b"up":
        os._exit(1)
    session = _Session(
        slot, ours, pid, modules["slot"].end_all, modules["freeze"].Freezer(slot.kernel), modules["notebook"].SOCKET_FD
    )
    if not session.learn_how_it_waits() or not session.freezer.freeze(session.is_waiting):
        remedy = "Allow ptrace in this container (kernel.yama.ptrace_scope below 3)."
        print(f"an interpreter cannot be stopped between two calls. {remedy}", file=sys.stderr, flush=True)
        os._exit(1)
    slot.up()
    while True:
        message, descriptors, _, _ = socket.recv_fds(slot.socket, WORD, 3)
        if not message:
            os._exit(0)
        if message != b"K":  # else it came after the end of the cell that it was for
            slot.socket.send(session.cell(message, descriptors))


class _Session:
    def __init__(self, slot, notebook, pid, end_all, freezer, channel_fd):
        self.slot = slot
        self.notebook = notebook
        self.pid = pid
        self.end_all = end_all
        self.freezer = freezer
        self.pidfd = os.pidfd_open(pid)
        self.channel_fd = channel_fd
        self.waiting_call = None

    def cell(self, message, descriptors):
        """Hand the cell on, wait for its end, stop or end everything. Returns the reply."""
        request, seconds, _ = message.split()  # the last is for what is not up yet
        if self._ready(0, self.pidfd):
            return b"%s 0 lost - 0" % request
        while self._ready(0, self.notebook.fileno()):  # words that nobody asked for
            if not self.notebook.recv(WORD):
                break
        self.freezer.thaw()
        with contextlib.suppress(OSError):  # it has closed its end: seen below
            socket.send_fds(self.notebook, [request], descriptors)
        for fd in descriptors:
            os.close(fd)
        reason, code, report = self._watch(request, float(seconds))
        if code is None or not self.freezer.freeze(self.is_waiting) or self._ready(0, self.pidfd):
            return b"%s %d %s %s 0" % (request, self.end_all(self.pid), reason, report)
        self._reap()
        return b"%s %d %s %s 1" % (request, code << 8, reason, report)

    def learn_how_it_waits(self):
        """The system call in which the notebook's main thread sleeps before its first cell, for `is_waiting`."""
        for _ in self.freezer.pauses():
            call = self._system_call()
            if call is not None and call[1] == self.channel_fd:
                self.waiting_call = call
                return True
        return False

    def is_waiting(self):
        """The notebook, for the next cell. One that has ended will not come to wait."""
        return self._system_call() == self.waiting_call or bool(self._ready(0, self.pidfd))

    def _system_call(self):
        """(number, first argument) of the system call in which the notebook's main thread sleeps or has stopped; None
        where it is in none."""
        try:
            with open(f"/proc/{self.pid}/syscall") as f:
                number, first, *_ = f.read().split()
            return int(number), int(first, 16)
        except (OSError, ValueError):  # ended; "running"
            return None

    def _watch(self, request, seconds):
        """(reason, exit code, report); no code when the session cannot go on."""
        ready = self._ready(seconds, self.pidfd, self.notebook.fileno(), self.slot.socket.fileno())
        if not ready:
            return b"time", None, b"R"
        if self.slot.socket.fileno() in ready:
            if not self.slot.socket.recv(WORD):
                os._exit(0)  # the server is gone; with PID 1 its namespace dies
            return b"cancel", None, b"R"
        if self.notebook.fileno() in ready:
            answer, word = self._answer()
            if answer == request and word is not None:
                return b"end", *word
        return b"end", None, b"R"

    def _answer(self):
        """(request, (exit code, report)); (None, None) where the notebook, or code in its place, did not say that."""
        try:
            message, ancillary, _, _ = self.notebook.recvmsg(WORD, socket.CMSG_SPACE(_CREDENTIALS.size))
            (sender,) = [_CREDENTIALS.unpack(data)[0] for _, kind, data in ancillary if kind == socket.SCM_CREDENTIALS]
            request, code, report = message.split()
            if sender == self.pid and 0 <= int(code) <= 255 and report in (b"R", b"RS"):
                return request, (int(code), report)
        except (OSError, ValueError, struct.error):
            pass
        return None, None

    def _ready(self, seconds, *fds):
        poll = select.poll()
        for fd in fds:
            poll.register(fd, select.POLLIN)
        return {fd for fd, _ in poll.poll(seconds * 1000)}

    def _reap(self):
        """Orphans that have ended. The notebook itself has not: it is stopped."""
        for child in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(ChildProcessError):
                if int(child) not in (1, self.pid):
                    os.waitpid(int(child), os.WNOHANG)
