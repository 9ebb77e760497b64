"""System calls that the master and its slots need and Python 3.11 lacks. A failure raises OSError with the call's
name."""

import ctypes
import fcntl
import os
import socket
import struct

NEWNS = 0x00020000
NEWUTS = 0x04000000
NEWIPC = 0x08000000
NEWUSER = 0x10000000
NEWPID = 0x20000000
NEWNET = 0x40000000
MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
DAC_OVERRIDE = 1
KILL = 5
SETGID = 6
SETUID = 7
SYS_PTRACE = 19
PTRACE_DETACH = 17
PTRACE_SEIZE = 0x4206
PTRACE_INTERRUPT = 0x4207
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_LAST_CAP = 63
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)


def _call(name, *args):
    if getattr(_libc, name)(*args) == -1:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}{args}: {os.strerror(error)}")


def unshare(flags):
    _call("unshare", flags)


def setns(fd, kind):
    _call("setns", fd, kind)


def mount(kind, target, flags, options=""):
    _call("mount", kind.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())


def loopback_up():
    """Start the network namespace's own loopback (127.0.0.1 and ::1), its only interface, from which no way leads
    out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


def ptrace(request, thread, data=0):
    _call("ptrace", request, thread, None, ctypes.c_void_p(data))


def undumpable():
    """Keep other processes from reading this one's memory through /proc: those of another uid, and those without ptrace
    rights."""
    _call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)


def no_new_privileges():
    """Keep this process and its children from gaining rights by exec."""
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def empty_bounding_set():
    """Keep programs that are executed from now on from gaining a capability."""
    for capability in range(_LAST_CAP + 1):
        try:
            _call("prctl", _PR_CAPBSET_DROP, capability, 0, 0, 0)
        except OSError:  # this kernel has no more capabilities
            break


def keep_capabilities(*capabilities):
    """Give up all capabilities except these."""
    mask = sum(1 << capability for capability in capabilities)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    # low words: effective, permitted, inheritable; then the high words
    sets = (ctypes.c_uint32 * 6)(mask, mask, 0, 0, 0, 0)
    _call("capset", header, sets)


def seccomp(program):
    """Install a filter: an array of struct sock_filter, 8 bytes each."""

    class Filter(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]

    _call("prctl", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(Filter(len(program) // 8, program)), 0, 0)
