"""A slot (PID 1 of its own namespaces) around one interpreter that keeps its state from cell to cell.

    request   "<id> <seconds>" with descriptors: the cell (a read-only memory file), stdout, stderr; handed on to the
              notebook
    "K"       end the session now
    reply     "<id> <wait status> <reason> <report> <alive>"; reason: end | time | cancel | lost

Between two cells every thread of the session is stopped (`freeze`): nothing runs, prints or grows outside a call. A
cell that misses its time, and an interpreter that ends or violates the protocol, end the session: everything in it is
killed and `alive` is 0. `lost` is an interpreter that was killed while it was stopped: from outside, since nothing
inside could.

A cell has ended when its interpreter's main thread waits for the next one. The notebook's message about the end counts
only then: code that writes such a message itself and goes on violates the protocol. The message must come from that
process, and bear the id of this very request, which nobody knew before. How the cell ended (the exit code in the
message) is believed, as the exit code of a program is.
"""

import contextlib
import os
import select
import socket
import struct
import sys

MESSAGE_BYTES = 64
"""Longest message of the notebook."""
_CREDENTIALS = struct.Struct("3i")


def serve(slot, modules, options):
    """Serve the cells of a session. Return only in the notebook's process, with the Notebook."""
    slot_end, notebook_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    slot_end.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    pid = os.fork()
    if pid == 0:
        slot_end.close()
        return modules["notebook"].Notebook(slot, notebook_end, modules["slot"], options)
    notebook_end.close()
    if slot_end.recv(MESSAGE_BYTES) != b"up":
        os._exit(1)
    session = _Session(
        slot,
        slot_end,
        pid,
        modules["slot"].end_all,
        modules["freeze"].Freezer(slot.kernel),
        modules["notebook"].SOCKET_FD,
    )
    if not session.learn_waiting_call() or not session.freezer.freeze(session.is_waiting):
        remedy = "Allow ptrace in this container (kernel.yama.ptrace_scope below 3)."
        print(f"an interpreter cannot be stopped between two calls. {remedy}", file=sys.stderr, flush=True)
        os._exit(1)
    slot.up()
    while True:
        message, descriptors, _, _ = socket.recv_fds(slot.socket, MESSAGE_BYTES, 3)
        if not message:
            os._exit(0)
        if message != b"K":  # a "K" here came after the end of its cell
            slot.socket.send(session.cell(message, descriptors))


class _Session:
    """The slot's view of one session."""

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
        """Hand a cell to the notebook, wait for its end, then stop or end everything. Return the reply."""
        request, seconds, _ = message.split()  # the third is the time to come up, which a session does not need
        if self._ready(0, self.pidfd):
            return b"%s 0 lost - 0" % request
        while self._ready(0, self.notebook.fileno()):  # drop messages that answer no request
            if not self.notebook.recv(MESSAGE_BYTES):
                break
        self.freezer.thaw()
        with contextlib.suppress(OSError):  # the notebook has closed its end, which is seen below
            socket.send_fds(self.notebook, [request], descriptors)
        for fd in descriptors:
            os.close(fd)
        reason, code, report = self._watch(request, float(seconds))
        if code is None or not self.freezer.freeze(self.is_waiting) or self._ready(0, self.pidfd):
            return b"%s %d %s %s 0" % (request, self.end_all(self.pid), reason, report)
        self._reap()
        return b"%s %d %s %s 1" % (request, code << 8, reason, report)

    def learn_waiting_call(self):
        """Remember the system call in which the notebook sleeps before its first cell. Return False if it does not."""
        for _ in self.freezer.pauses():
            call = self._system_call()
            if call is not None and call[1] == self.channel_fd:
                self.waiting_call = call
                return True
        return False

    def is_waiting(self):
        """Return True if the notebook waits for the next cell, or has ended: then it will never wait."""
        return self._system_call() == self.waiting_call or bool(self._ready(0, self.pidfd))

    def _system_call(self):
        """Return number and first argument of the system call in which the notebook's main thread sleeps or has
        stopped.

        None if it is in none.
        """
        try:
            with open(f"/proc/{self.pid}/syscall") as f:
                number, first, *_ = f.read().split()
            return int(number), int(first, 16)
        except (OSError, ValueError):  # it has ended; the file says "running"
            return None

    def _watch(self, request, seconds):
        """Wait for the end of a cell. Return reason, exit code and report; the code is None if the session cannot go
        on."""
        ready = self._ready(seconds, self.pidfd, self.notebook.fileno(), self.slot.socket.fileno())
        if not ready:
            return b"time", None, b"R"
        if self.slot.socket.fileno() in ready:
            if not self.slot.socket.recv(MESSAGE_BYTES):
                os._exit(0)  # the server is gone; with this PID 1 its namespace dies
            return b"cancel", None, b"R"
        if self.notebook.fileno() in ready:
            answered, result = self._answer()
            if answered == request and result is not None:
                return b"end", *result
        return b"end", None, b"R"

    def _answer(self):
        """Read a message of the notebook. Return the request that it answers, and (exit code, report).

        Both are None if the message is malformed, or comes from another process than the notebook.
        """
        try:
            message, ancillary, _, _ = self.notebook.recvmsg(MESSAGE_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
            (sender,) = [_CREDENTIALS.unpack(data)[0] for _, kind, data in ancillary if kind == socket.SCM_CREDENTIALS]
            request, code, report = message.split()
            if sender == self.pid and 0 <= int(code) <= 255 and report in (b"R", b"RS"):
                return request, (int(code), report)
        except (OSError, ValueError, struct.error):
            pass
        return None, None

    def _ready(self, seconds, *fds):
        """Return those of the descriptors that can be read within some seconds."""
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
