"""PID 1 of a namespace of its own, which runs one request at a time: fork, supervise, kill what is left, wipe, answer.

    request   "<id> <seconds> <seconds to come up>" with descriptors: the job (a read-only memory file), stdout, stderr,
              and the file for fetched files, if any
    "K"       end the running request now
    reply     "<id> <wait status> <reason> <report> <clean>"; reason: end | time | cancel; report: the child's own, "R"
              and "S" of `runner`

Before the first request goes "ready" with descriptors of the slot's tmpfs mounts, by which the server reads their size.
`clean` says that the slot is as it was then: no block and no inode of the mounts is in use, with a name or without, and
no socket is left in its network.

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
    """The slot's own side. Its constructor turns the process into the PID 1 of new namespaces."""

    def __init__(self, socket_fd, uid, shares_uid, kernel, options, filter_program, *more_capabilities):
        """Set up the namespaces, mounts and rights.

        Args:
            socket_fd: Descriptor of the connection to the server.
            uid: The snippet's uid; 0 if no other is mapped.
            shares_uid: Whether several slots have this uid: each snippet's processes are then counted in a user
                namespace of its own.
            kernel: The module `kernel`.
            options: The options of the master.
            filter_program: The seccomp filter; None: no filter.
            *more_capabilities: Capabilities that the slot keeps besides those that every slot needs.
        """
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.socket = socket.socket(fileno=socket_fd)
        self.kernel = kernel
        self.uid = uid
        self.shares_uid = shares_uid
        kernel.unshare(kernel.NEWNS | kernel.NEWIPC | kernel.NEWNET | kernel.NEWUTS)
        kernel.loopback_up()
        no_programs = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
        kernel.mount("proc", "/proc", no_programs)
        for name in ("tcp_rmem", "tcp_wmem"):
            with open(f"/proc/sys/net/ipv4/{name}", "w") as f:
                f.write(TCP_BUFFER)
        # read-only from now on: no process may change its oom_score_adj
        kernel.mount("proc", "/proc", no_programs | kernel.MS_RDONLY | kernel.MS_REMOUNT | kernel.MS_BIND)
        for directory in SHARED:
            kernel.mount("tmpfs", directory, kernel.MS_NOSUID | kernel.MS_NODEV, options["tmpfs"])
        self.directories = [os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for directory in SHARED]
        self.sockstat = os.open("/proc/self/net/sockstat", os.O_RDONLY | os.O_CLOEXEC)
        self.usage_when_empty = self._in_use()
        with open("/proc/self/statm") as f:
            self.own_size = int(f.read().split()[0]) * resource.getpagesize()
        os.umask(0o022)
        kernel.undumpable()
        kernel.no_new_privileges()
        kernel.empty_bounding_set()
        # With a shared uid the child still needs unshare, so it installs the filter itself.
        if filter_program and not shares_uid:
            kernel.seccomp(filter_program)
        self.filter_program = filter_program if shares_uid else None
        kernel.keep_capabilities(kernel.KILL, kernel.SETUID, kernel.SETGID, kernel.DAC_OVERRIDE, *more_capabilities)

    def up(self):
        """Tell the server that the slot is ready."""
        socket.send_fds(self.socket, [b"ready"], self.directories)

    def serve(self):
        """Serve requests. Return only in the child of a request, with its Job."""
        self.up()
        while True:
            message, descriptors, _, _ = socket.recv_fds(self.socket, 64, 4)
            if not message:
                os._exit(0)
            if message == b"K":  # it came after the end of its request
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
        """Wait for the end of the child. Return the reason and the child's report so far.

        The snippet's clock runs from when it is up, which the report says: before that, the host is late and not the
        snippet.
        """
        pidfd = os.pidfd_open(pid)
        try:
            poll = select.poll()
            for fd in (pidfd, self.socket.fileno(), report_fd):
                poll.register(fd, select.POLLIN)
            ready = dict(poll.poll(start_seconds * 1000))
            report = b""
            if report_fd in ready:
                report = os.read(report_fd, 16)  # empty if the child has ended, which the next poll shows
                poll.unregister(report_fd)
                ready = dict(poll.poll(seconds * 1000))
        finally:
            os.close(pidfd)
        if not ready:
            return b"time", report
        if pidfd in ready:
            return b"end", report
        if not self.socket.recv(64):
            os._exit(0)  # the server is gone; with this PID 1 its namespace dies
        return b"cancel", report

    def _wipe(self):
        """Remove all files. Return False if something of the request is left: the server then replaces this slot."""
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
            return self._in_use() == self.usage_when_empty
        except (OSError, RecursionError):
            return False

    def _in_use(self):
        """Return what is in use of the tmpfs mounts and of the network.

        These are blocks and inodes, sockets, and closed connections that the kernel still keeps. Names would not tell:
        a deleted file lives on in a descriptor, and a descriptor in a message that nobody has read.
        """
        counts: list[int] = []
        for directory in self.directories:
            fs = os.fstatvfs(directory)
            counts += fs.f_blocks - fs.f_bfree, fs.f_files - fs.f_ffree
        fields = os.pread(self.sockstat, 512, 0).split()
        return *counts, fields[fields.index(b"used") + 1], fields[fields.index(b"tw") + 1]


def end_all(pid):
    """Kill every other process of this namespace, wait until none is left, and return the wait status of `pid`."""
    status = 0
    while True:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        try:
            while True:
                ended, wait_status = os.waitpid(-1, 0)
                if ended == pid:
                    status = wait_status
        except ChildProcessError:  # none is left: the orphans of a namespace are all children of its PID 1
            return status


class Job:
    """The child of a request, and what it does before the snippet runs. If it fails it writes no report: the sandbox's
    fault."""

    def __init__(self, slot, descriptors, status_fd):
        self.slot = slot
        self.descriptors = descriptors
        self.status_fd = status_fd

    def prepare(self, runner):
        """Read the job and give up everything else. Return Python source; another program is executed and never
        returns."""
        slot = self.slot
        os.setsid()
        limits, source, stdin, files, fetch, program = marshal.loads(read_all(self.descriptors[0]))
        slot.socket.detach()
        descriptors = {0: new_stdin(), 1: self.descriptors[1], 2: self.descriptors[2], STATUS_FD: self.status_fd}
        if len(self.descriptors) > 3:
            descriptors[FETCH_FD] = self.descriptors[3]
        keep_descriptors(descriptors)
        give_up_rights(slot)
        # the warm interpreter's own address space does not count as the snippet's
        already_mapped = {"AS": slot.own_size, "DATA": slot.own_size}
        runner.arrange(os.path.dirname(PATH), source, stdin, files, limits, program, already_mapped)
        if fetch:
            runner.stay_behind(fetch, FETCH_FD, STATUS_FD)
        if program:
            runner.become(program[1:], STATUS_FD)
        sys.argv[:] = [PATH]
        sys.path[:0] = [os.path.dirname(PATH)]
        return source


def new_stdin():
    """Return a new descriptor of /dev/null.

    It is opened for each request: flags, locks and the owner belong to one open(), and would reach the next request.
    """
    return os.open("/dev/null", os.O_RDONLY)


def keep_descriptors(descriptors):
    """Renumber descriptors and close all others, including the slot's socket.

    Args:
        descriptors: The open descriptor for each new number. Only 0 to 2 stay open through exec.
    """
    moved = {target: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for target, fd in descriptors.items()}
    os.closerange(0, 64)
    for target, fd in moved.items():
        os.dup2(fd, target, inheritable=target <= 2)
    os.closerange(64, 1 << 16)


def give_up_rights(slot):
    """Go from the slot's rights to the snippet's: its uid, no capability, the filter, and fresh random seeds."""
    kernel = slot.kernel
    if slot.uid:
        os.setresgid(slot.uid, slot.uid, slot.uid)
        os.setresuid(slot.uid, slot.uid, slot.uid)
    if slot.shares_uid:
        kernel.unshare(kernel.NEWUSER)
        kernel.empty_bounding_set()
    kernel.keep_capabilities()
    if slot.filter_program:
        kernel.seccomp(slot.filter_program)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "numpy" in sys.modules:  # the module `random` seeds itself in a fork
        sys.modules["numpy"].random.seed()
    if "sympy" in sys.modules:
        sys.modules["sympy"].core.random.rng.seed()


def read_all(fd, read=os.read):
    """Return everything that a descriptor holds. `read` is bound before any cell runs, which may replace os.read."""
    parts = []
    while part := read(fd, 1 << 20):
        parts.append(part)
    return b"".join(parts)
