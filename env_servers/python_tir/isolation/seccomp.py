"""The system calls that a snippet is refused, as a BPF program made by libseccomp (a package of every Debian system).

Everything else is allowed: the filter closes what namespaces and rlimits leave open, it is not a list of allowed calls.

    EPERM     new namespaces and mounts, ptrace and other processes' memory, keyrings, bpf, perf, io_uring, userfaultfd,
              modules, reboot ...
    EPERM     prlimit() of another process
    EPERM     socket() of any family except AF_UNIX, and TCP and UDP if the network namespace is the sandbox's own and
              has only a loopback (netlink, vsock and packet sockets exist even without a network)
    EPERM     memory that outlives its mappings, where nothing can count it (`memory`): shared anonymous mappings,
              vmsplice, MSG_ZEROCOPY
    EPERM     what wakes or kills a session between two calls (`warm.freeze`): POSIX timers, a freely chosen signal for
              a file's events
    0         socket buffer sizes: accepted and ignored, so that a socket holds no more than the kernel's default
    ENOSYS    clone3, whose flags a filter cannot see: glibc falls back to clone; io_uring and memfd, whose callers fall
              back too
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import os
import socket
from collections.abc import Iterator

DENIED = """
    acct add_key bpf chroot delete_module fanotify_init finit_module fsconfig fsmount fsopen fspick init_module ioperm
    iopl kcmp kexec_file_load kexec_load keyctl lookup_dcookie mount mount_setattr move_mount name_to_handle_at
    open_by_handle_at open_tree perf_event_open personality pidfd_getfd pivot_root process_madvise process_vm_readv
    process_vm_writev ptrace quotactl reboot request_key setns settimeofday swapoff swapon syslog umount2 unshare uselib
    userfaultfd vhangup mq_open mq_unlink msgget semget shmget vmsplice timer_create inotify_add_watch fanotify_mark
"""
DENIED_WITHOUT_NAMESPACES = """
    chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat utimensat setxattr lsetxattr
    fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat setpriority ioprio_set migrate_pages
    move_pages sched_setparam sched_setscheduler sched_setattr sched_setaffinity shmat shmctl msgsnd msgrcv msgctl semop
    semtimedop semctl socket mq_timedsend mq_timedreceive
"""
"""Calls that are denied besides, if files, processes and objects of the host can be reached by name and only the calls
that open them are confined."""
ABSENT = ["clone3", "memfd_create", "memfd_secret", "io_uring_setup", "io_uring_enter", "io_uring_register"]
NEW_NAMESPACES = 0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
"""Flags CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. (clone cannot make a time namespace: there the
bit of NEWTIME is part of the exit signal.)"""

MAP_TYPE = 0x0F
MAP_SHARED = 0x01
MAP_SHARED_VALIDATE = 0x03
MAP_ANONYMOUS = 0x20
F_SETSIG = 10
SO_SNDBUF = 7
SO_RCVBUF = 8
SO_ZEROCOPY = 60
INT = 0xFFFFFFFF
"""Mask of the bits that the kernel reads of an int argument; it ignores the higher ones in the register."""
SOCKET_TYPE = 0x0F
"""Mask of the type in socket()'s second argument; the other bits are flags."""

_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_NE = 1
_LT = 2
_EQ = 4
_GE = 5
_MASKED_EQ = 7


class _Compare(ctypes.Structure):
    """struct scmp_arg_cmp."""

    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


def filter_program(*, namespaces: bool = True) -> bytes | None:
    """Return a BPF program for `bwrap --seccomp`, or for a sandbox without namespaces; None if libseccomp is
    missing.

    Raises:
        OSError: libseccomp refuses a rule.
    """
    name = ctypes.util.find_library("seccomp")
    if name is None:
        return None
    lib = ctypes.CDLL(name)
    lib.seccomp_init.restype = ctypes.c_void_p
    lib.seccomp_release.argtypes = [ctypes.c_void_p]
    lib.seccomp_export_bpf.argtypes = [ctypes.c_void_p, ctypes.c_int]
    lib.seccomp_rule_add_array.argtypes = [
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.POINTER(_Compare),
    ]
    context = lib.seccomp_init(ctypes.c_uint32(_ALLOW))

    def refuse(syscall: str, error: int, *conditions: _Compare) -> None:
        number = lib.seccomp_syscall_resolve_name(syscall.encode())
        if number != -1:  # unknown to this libseccomp, hence older than the call
            array = (_Compare * len(conditions))(*conditions)
            result = lib.seccomp_rule_add_array(context, _ERRNO | error, number, len(conditions), array)
            if result not in (0, -errno.EDOM):  # EDOM: this architecture has no such call
                raise OSError(-result, f"seccomp rule for {syscall}: {os.strerror(-result)}")

    try:
        for syscall in DENIED.split() + ([] if namespaces else DENIED_WITHOUT_NAMESPACES.split()):
            refuse(syscall, errno.EPERM)
        for syscall in ABSENT:
            refuse(syscall, errno.ENOSYS)
        for flag in NEW_NAMESPACES:
            refuse("clone", errno.EPERM, _Compare(0, _MASKED_EQ, flag, flag))
        # if a slot's PID 1 has the snippet's uid, a snippet could change the limits of the next call
        refuse("prlimit64", errno.EPERM, _Compare(0, _NE, 0, 0))
        for kind in (MAP_SHARED, MAP_SHARED_VALIDATE):
            refuse("mmap", errno.EPERM, _Compare(3, _MASKED_EQ, MAP_TYPE | MAP_ANONYMOUS, kind | MAP_ANONYMOUS))
        refuse("fcntl", errno.EPERM, _Compare(1, _MASKED_EQ, INT, F_SETSIG))
        for option, error in ((SO_ZEROCOPY, errno.EPERM), (SO_SNDBUF, 0), (SO_RCVBUF, 0)):
            refuse(
                "setsockopt",
                error,
                _Compare(1, _MASKED_EQ, INT, socket.SOL_SOCKET),
                _Compare(2, _MASKED_EQ, INT, option),
            )
        refuse("socketpair", errno.EPERM, _Compare(0, _NE, socket.AF_UNIX, 0))
        for conditions in _denied_sockets() if namespaces else ():
            refuse("socket", errno.EPERM, *conditions)
        fd = os.memfd_create("bpf", os.MFD_CLOEXEC)
        try:
            if lib.seccomp_export_bpf(context, fd) != 0:
                raise OSError("seccomp_export_bpf failed")
            return os.pread(fd, 1 << 20, 0)
        finally:
            os.close(fd)
    finally:
        lib.seccomp_release(context)


def _denied_sockets() -> Iterator[list[_Compare]]:
    """Yield the conditions for every socket() except AF_UNIX, and TCP and UDP over IPv4 and IPv6.

    A rule can compare an argument only once, so the conditions are several rules.
    """
    inet = socket.AF_INET, socket.AF_INET6
    families = {socket.AF_UNIX, *inet}
    yield [_Compare(0, _LT, min(families), 0)]
    yield [_Compare(0, _GE, max(families) + 1, 0)]
    for family in set(range(min(families), max(families))) - families:
        yield [_Compare(0, _EQ, family, 0)]
    for family in inet:
        for kind in set(range(SOCKET_TYPE + 1)) - {socket.SOCK_STREAM, socket.SOCK_DGRAM}:
            yield [_Compare(0, _EQ, family, 0), _Compare(1, _MASKED_EQ, SOCKET_TYPE, kind)]
        for protocol in set(range(1, socket.IPPROTO_UDP)) - {socket.IPPROTO_TCP}:
            yield [_Compare(0, _EQ, family, 0), _Compare(2, _EQ, protocol, 0)]
        yield [_Compare(0, _EQ, family, 0), _Compare(2, _GE, socket.IPPROTO_UDP + 1, 0)]
