"""Session: a slot (PID 1 of namespaces of its own) around one interpreter that keeps its state from cell to cell.

    request   "<id> <seconds>" with descriptors: the cell (a read-only memory file), stdout, stderr     -> handed on to the notebook
    "K"       end the session now
    reply     "<id> <wait status> <reason> <report> <alive> <bytes>"; reason: end | time | cancel | lost; bytes: memory and files, estimated

Between two cells every process of the session is stopped: nothing runs, prints or grows that no call pays for. A cell that misses its
time, and an interpreter that ends or breaks the agreement, end the session: everything in it is killed and `alive` is 0. `lost` is an
interpreter that was killed from outside while it was stopped. What the notebook says of a cell is the snippet's word, as an exit code is.
"""

import contextlib
import os
import resource
import select
import signal
import socket

WORD = 64
"""No message of the notebook is longer."""


def serve(slot, modules, options):
    """Returns in the notebook's process only, with the Notebook."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        return modules["notebook"].Notebook(slot, theirs, modules["slot"], options)
    theirs.close()
    if ours.recv(WORD) != b"up":
        os._exit(1)
    slot.socket.send(b"ready")
    session = _Session(slot, ours, pid, modules["slot"].end_all)
    while True:
        message, descriptors, _, _ = socket.recv_fds(slot.socket, WORD, 3)
        if not message:
            os._exit(0)
        if message != b"K":  # else it came after the end of the cell that it was for
            slot.socket.send(session.cell(message, descriptors))


class _Session:
    def __init__(self, slot, notebook, pid, end_all):
        self.slot, self.notebook, self.pid, self.end_all = slot, notebook, pid, end_all
        self.pidfd = os.pidfd_open(pid)

    def cell(self, message, descriptors):
        """Hand the cell on, wait for its end, stop or end everything. Returns the reply."""
        request, seconds = message.split()
        if self._ready(0, self.pidfd):
            return b"%s 0 lost - 0 0" % request
        while self._ready(0, self.notebook.fileno()):  # words that nobody asked for
            if not self.notebook.recv(WORD):
                break
        os.kill(-1, signal.SIGCONT)
        with contextlib.suppress(OSError):  # it has closed its end: seen below
            socket.send_fds(self.notebook, [request], descriptors)
        for fd in descriptors:
            os.close(fd)
        reason, code, report = self._watch(request, float(seconds))
        if code is None:
            return b"%s %d %s %s 0 0" % (request, self.end_all(self.pid), reason, report)
        os.kill(-1, signal.SIGSTOP)
        self._reap()
        return b"%s %d %s %s 1 %d" % (request, code << 8, reason, report, self._bytes())

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
            answer, word = _parse(self.notebook)
            if answer == request and word is not None:
                return b"end", *word
        return b"end", None, b"R"

    def _ready(self, seconds, *fds):
        poll = select.poll()
        for fd in fds:
            poll.register(fd, select.POLLIN)
        return {fd for fd, _ in poll.poll(seconds * 1000)}

    def _reap(self):
        """Orphans that have ended. The notebook itself has not: it is stopped, or about to be."""
        for child in _pids():
            with contextlib.suppress(ChildProcessError):
                if child not in (1, self.pid):
                    os.waitpid(child, os.WNOHANG)

    def _bytes(self):
        """Private memory above the warm interpreter's, and what /tmp and /dev/shm hold."""
        total = 0
        for pid in _pids():
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/statm") as f:
                _, resident, shared, *_ = map(int, f.read().split())
                total += max(0, (resident - shared) * resource.getpagesize() - self.slot.own_memory)
        for directory in ("/tmp", "/dev/shm"):
            fs = os.statvfs(directory)
            total += (fs.f_blocks - fs.f_bfree) * fs.f_frsize
        return total


def _parse(notebook):
    """(request, (exit code, report)); (None, None) where the notebook, or code in its place, did not say that."""
    try:
        request, code, report = notebook.recv(WORD).split()
        if 0 <= int(code) <= 255 and report in (b"R", b"RS"):
            return request, (int(code), report)
    except (OSError, ValueError):
        pass
    return None, None


def _pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]
