"""Slot: PID 1 of a namespace of its own. One request at a time: fork, supervise, kill what is left, prove it, wipe,
answer.

    request   "<id> <seconds> <seconds to come up>" with descriptors: the job (a read-only memory file), stdout, stderr,
              and where fetched files go, if any
    "K"       end the running request now
    reply     "<id> <wait status> <reason> <report> <clean>"; reason: end | time | cancel; report: what the child said,
              "R" and "S" of `runner`

Before the first request goes "ready" with descriptors of the slot's tmpfs mounts, by which the server reads what they
hold. `clean` says that the slot is as it was then: no block and no inode of theirs is in use, with a name or without,
and no socket is left in its network.

Code, input and files never pass through this process: it hands their descriptors to the child. The reply's socket is
closed in the child before any line of the snippet runs. The child's own report ends when the snippet starts.
"""

import contextlib
import fcntl
import marshal
import os
import resource
import select
import shutil
import signal
import socket
import sys

PATH = "/tmp/main.py"
STATUS_FD = 3
FETCH_FD = 4
SHARED = ("/tmp", "/dev/shm")
TCP_BUFFER = "4096 65536 262144"
"""Smallest, first and largest bytes of each of a connection's two buffers: together at most `memory.SOCKET_BYTES`."""


class Slot:
    def __init__(self, socket_fd, uid, apart, kernel, options, filter_program, *more_capabilities):
        """`uid` is the snippet's, 0 where no other is mapped; `apart`: slots share it, so its processes are counted in
        a user namespace of its own."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.socket = socket.socket(fileno=socket_fd)
        self.kernel = kernel
        self.uid = uid
        self.apart = apart
        kernel.unshare(kernel.NEWNS | kernel.NEWIPC | kernel.NEWNET | kernel.NEWUTS)
        kernel.loopback_up()
        no_programs = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
        kernel.mount("proc", "/proc", no_programs)
        for name in ("tcp_rmem", "tcp_wmem"):
            with open(f"/proc/sys/net/ipv4/{name}", "w") as f:
                f.write(TCP_BUFFER)
        # no oom_score_adj from here on
        kernel.mount("proc", "/proc", no_programs | kernel.MS_RDONLY | kernel.MS_REMOUNT | kernel.MS_BIND)
        for directory in SHARED:
            kernel.mount("tmpfs", directory, kernel.MS_NOSUID | kernel.MS_NODEV, options["tmpfs"])
        self.directories = [os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for directory in SHARED]
        self.sockstat = os.open("/proc/self/net/sockstat", os.O_RDONLY | os.O_CLOEXEC)
        self.empty = self._in_use()
        with open("/proc/self/statm") as f:
            self.own_size = int(f.read().split()[0]) * resource.getpagesize()
        os.umask(0o022)
        kernel.undumpable()
        kernel.no_new_privileges()
        kernel.empty_bounding_set()
        if filter_program and not apart:
            kernel.seccomp(filter_program)
        self.filter_program = filter_program if apart else None
        kernel.keep_capabilities(kernel.KILL, kernel.SETUID, kernel.SETGID, kernel.DAC_OVERRIDE, *more_capabilities)

    def up(self):
        socket.send_fds(self.socket, [b"ready"], self.directories)

    def serve(self):
        """Returns in a request's child only, with its Job."""
        self.up()
        while True:
            message, descriptors, _, _ = socket.recv_fds(self.socket, 64, 4)
            if not message:
                os._exit(0)
            if message == b"K":  # came after the end of the request that it was for
                continue
            request, seconds, start_seconds = message.split()
            report_fd, status_fd = os.pipe2(os.O_CLOEXEC)
            pid = os.fork()
            if pid == 0:
                return Job(self, descriptors, status_fd)
            for fd in (*descriptors, status_fd):
                os.close(fd)
            reason, report = self._watch(pid, report_fd, float(seconds), float(start_seconds))
            status = end_all(pid)
            report += os.read(report_fd, 16)
            os.close(report_fd)
            self.socket.send(
                b"%s %d %s %s %d" % (request, status, reason, b"".join(report.split()) or b"-", self._wipe())
            )

    def _watch(self, pid, report_fd, seconds, start_seconds):
        """(reason, the child's report so far). The snippet's clock runs from when it is up, which the report says:
        before, the host is late, not it."""
        pidfd = os.pidfd_open(pid)
        try:
            poll = select.poll()
            for fd in (pidfd, self.socket.fileno(), report_fd):
                poll.register(fd, select.POLLIN)
            ready = dict(poll.poll(start_seconds * 1000))
            report = b""
            if report_fd in ready:
                report = os.read(report_fd, 16)  # nothing: the child has ended, and is seen to have
                poll.unregister(report_fd)
                ready = dict(poll.poll(seconds * 1000))
        finally:
            os.close(pidfd)
        if not ready:
            return b"time", report
        if pidfd in ready:
            return b"end", report
        if not self.socket.recv(64):
            os._exit(0)  # the server is gone; with PID 1 its namespace dies
        return b"cancel", report

    def _wipe(self):
        """Whether nothing is left of the request. If not, the server replaces this slot."""
        try:
            for directory in SHARED:
                for name in os.listdir(directory):
                    path = f"{directory}/{name}"
                    if os.path.isdir(path) and not os.path.islink(path):
                        shutil.rmtree(path)
                    else:
                        os.unlink(path)
            if any(os.listxattr(d) or os.stat(d).st_mode & 0o7777 != 0o1777 for d in SHARED):
                return False
            return self._in_use() == self.empty
        except (OSError, RecursionError):
            return False

    def _in_use(self):
        """What is in use of the tmpfs mounts (blocks and inodes) and of the network (sockets, and connections that only
        wait to be forgotten).

        Names do not tell: a file that was deleted lives on in a descriptor, and a descriptor in a message that nobody
        has read."""
        held: list[int] = []
        for directory in self.directories:
            fs = os.fstatvfs(directory)
            held += fs.f_blocks - fs.f_bfree, fs.f_files - fs.f_ffree
        words = os.pread(self.sockstat, 512, 0).split()
        return *held, words[words.index(b"used") + 1], words[words.index(b"tw") + 1]


def end_all(pid):
    """Kill every other process of this namespace and wait until there is none. Returns the wait status of `pid`."""
    status = 0
    while True:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        try:
            while True:
                ended, how = os.waitpid(-1, 0)
                if ended == pid:
                    status = how
        except ChildProcessError:  # none: a namespace's orphans are all children of its PID 1
            return status


class Job:
    """What a request's child is and does before the snippet runs. A failure is the sandbox's: no report is written."""

    def __init__(self, slot, descriptors, status_fd):
        self.slot = slot
        self.descriptors = descriptors
        self.status_fd = status_fd

    def prepare(self, runner):
        """Take the job, give up everything else. Returns the source of Python; becomes any other program."""
        slot = self.slot
        os.setsid()
        limits, source, stdin, files, fetch, program = marshal.loads(read_all(self.descriptors[0]))
        slot.socket.detach()
        kept = {0: new_stdin(), 1: self.descriptors[1], 2: self.descriptors[2], STATUS_FD: self.status_fd}
        if len(self.descriptors) > 3:
            kept[FETCH_FD] = self.descriptors[3]
        keep_descriptors(kept)
        give_up_rights(slot)
        own = {"AS": slot.own_size, "DATA": slot.own_size}  # what is mapped already is not the snippet's
        runner.arrange(os.path.dirname(PATH), source, stdin, files, limits, program, own)
        if fetch:
            runner.stay_behind(fetch, FETCH_FD, STATUS_FD)
        if program:
            runner.become(program[1:], STATUS_FD)
        sys.argv[:] = [PATH]
        sys.path[:0] = [os.path.dirname(PATH)]
        return source


def new_stdin():
    """Opened for each request: flags, locks and the owner belong to one open(), and would reach the next request."""
    return os.open("/dev/null", os.O_RDONLY)


def keep_descriptors(kept):
    """`kept` is {number from now on: open descriptor}; 0 to 2 pass through exec. All others are closed, the slot's
    socket among them."""
    aside = {target: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for target, fd in kept.items()}
    os.closerange(0, 64)
    for target, fd in aside.items():
        os.dup2(fd, target, inheritable=target <= 2)
    os.closerange(64, 1 << 16)


def give_up_rights(slot):
    """From the slot's rights to the snippet's: its uid, no capability, the filter; and random numbers of its own."""
    kernel = slot.kernel
    if slot.uid:
        os.setresgid(slot.uid, slot.uid, slot.uid)
        os.setresuid(slot.uid, slot.uid, slot.uid)
    if slot.apart:
        kernel.unshare(kernel.NEWUSER)
        kernel.empty_bounding_set()
    kernel.keep_capabilities()
    if slot.filter_program:
        kernel.seccomp(slot.filter_program)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "numpy" in sys.modules:  # `random` does so by itself in a fork
        sys.modules["numpy"].random.seed()
    if "sympy" in sys.modules:
        sys.modules["sympy"].core.random.rng.seed()


def read_all(fd, read=os.read):
    """`read` is kept from before any cell, which may replace it."""
    parts = []
    while part := read(fd, 1 << 20):
        parts.append(part)
    return b"".join(parts)
