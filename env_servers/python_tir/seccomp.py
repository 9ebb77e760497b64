"""Seccomp: the system calls a snippet is refused, as a BPF program made by libseccomp (a package of every Debian system).

Everything else is allowed: this closes what namespaces and rlimits leave open, it is no allow-list.

    EPERM     new namespaces and mounts, ptrace and other processes' memory, keyrings, bpf, perf, io_uring, userfaultfd, modules, reboot ...
    EPERM     prlimit() of another process
    EPERM     socket() of any family but AF_UNIX (netlink, vsock and packet sockets exist even without a network)
    ENOSYS    clone3, whose flags a filter cannot see: glibc falls back to clone; io_uring and memfd, whose callers fall back too
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import os
import socket

DENIED = """
    acct add_key bpf chroot delete_module fanotify_init finit_module fsconfig fsmount fsopen fspick init_module ioperm iopl kcmp kexec_file_load
    kexec_load keyctl lookup_dcookie mount mount_setattr move_mount name_to_handle_at open_by_handle_at open_tree perf_event_open personality
    pidfd_getfd pivot_root process_madvise process_vm_readv process_vm_writev ptrace quotactl reboot request_key setns settimeofday swapoff swapon
    syslog umount2 unshare uselib userfaultfd vhangup mq_open mq_unlink msgget semget shmget
"""
DENIED_WITHOUT_NAMESPACES = """
    chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat utimensat setxattr lsetxattr fsetxattr setxattrat removexattr
    lremovexattr fremovexattr removexattrat setpriority ioprio_set migrate_pages move_pages sched_setparam sched_setscheduler sched_setattr
    sched_setaffinity shmat shmctl msgsnd msgrcv msgctl semop semtimedop semctl socket mq_timedsend mq_timedreceive inotify_add_watch
"""
"""Where the host's files, processes and objects are in reach by name, and only the calls that open them are confined otherwise."""
ABSENT = ["clone3", "memfd_create", "memfd_secret", "io_uring_setup", "io_uring_enter", "io_uring_register"]
NEW_NAMESPACES = 0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. (NEWTIME cannot be had by clone: there it is part of the exit signal.)"""

_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NE, _MASKED_EQ = 1, 7


class _Compare(ctypes.Structure):
    """struct scmp_arg_cmp."""

    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


def filter_program(*, namespaces: bool = True) -> bytes | None:
    """The BPF program for `bwrap --seccomp`, or for a sandbox without `namespaces`; None where libseccomp is missing."""
    name = ctypes.util.find_library("seccomp")
    if name is None:
        return None
    lib = ctypes.CDLL(name)
    lib.seccomp_init.restype = ctypes.c_void_p
    lib.seccomp_release.argtypes = [ctypes.c_void_p]
    lib.seccomp_export_bpf.argtypes = [ctypes.c_void_p, ctypes.c_int]
    lib.seccomp_rule_add_array.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(_Compare)]
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
        refuse("prlimit64", errno.EPERM, _Compare(0, _NE, 0, 0))  # where a slot's PID 1 has the snippet's uid, its limits are the next call's
        for syscall in ("socket", "socketpair") if namespaces else ("socketpair",):
            refuse(syscall, errno.EPERM, _Compare(0, _NE, socket.AF_UNIX, 0))
        fd = os.memfd_create("bpf", os.MFD_CLOEXEC)
        try:
            if lib.seccomp_export_bpf(context, fd) != 0:
                raise OSError("seccomp_export_bpf failed")
            return os.pread(fd, 1 << 20, 0)
        finally:
            os.close(fd)
    finally:
        lib.seccomp_release(context)
