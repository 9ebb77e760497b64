"""Measure the memory that the processes of one call hold together, as nearly as possible without a control group.

    private pages       of every process; pages that forks share count once (Pss)
    page tables         of every process
    files               of the call's own tmpfs: blocks in use, mapped or not, with a name or without; and the kernel's
                        record of each
    sockets             of the call's own network namespace, including those in flight: each counts as what its buffers
                        may hold. Without such a namespace every open descriptor counts as a socket

Memory that no process maps any more cannot be read anywhere, so `seccomp` refuses what would make it: shared anonymous
mappings (a file in /dev/shm does the same), vmsplice, larger socket buffers. Not counted: pipe buffers (the kernel
gives a user 64 MiB, then two pages for each pipe), and the kernel's records of mappings, descriptors and locks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress

from .tree import descendants

SOCKET_BYTES = 512 << 10
"""Bytes of a socket: twice the kernel's default of a buffer, rounded up, because the last packet of a buffer may pass
its limit. `warm.slot` bounds TCP's to this."""
PAIR_BYTES = 256 << 10
"""Unread bytes of one end of a socket pair, the only kind of socket where the network is the host's."""
MAX_TCP_BYTES = 64 << 20
"""Upper bound of what a connection counts as. Hosts with fast networks allow gigabytes, which hardly any connection
holds; with such a count no snippet could have one."""
INODE_BYTES = 1 << 10
"""Bytes that tmpfs keeps of a file besides its content: inode, name, a short symbolic link."""
WALKS = 5
"""How often the processes are read if some end meanwhile. A chain of forks outruns one reading, but hardly five."""
_SOCKETS = re.compile(rb"sockets: used (\d+)\nTCP: inuse (\d+)")


def used_bytes(
    pid: int, enough: int, *, directories: Sequence[int] = (), net: int | None = None, tcp_bytes: int = SOCKET_BYTES
) -> int:
    """Return the bytes of memory of everything below `pid`: exact above `enough`, an upper bound below it.

    Args:
        pid: The process whose descendants are measured.
        enough: The limit. While even the upper bound is below it, the exact value, which costs more, is not read.
        directories: Descriptors of the call's tmpfs mounts.
        net: A process in the call's network namespace; None if it has none of its own.
        tcp_bytes: Bytes that each end of a connection may hold.
    """
    files = sum(map(file_bytes, directories))
    sockets = _descriptors(pid) * PAIR_BYTES if net is None else socket_bytes(net, tcp_bytes)
    bound = _steadily(pid, _upper_bound) + files + sockets
    if bound <= enough:
        return bound
    return _steadily(pid, lambda pids: _exact(pids, files)) + files + sockets


def session_bytes(pid: int, initial_bytes: int, directories: Sequence[int]) -> int:
    """Return the bytes that the stopped processes below `pid` hold beyond what each had at its start.

    Args:
        pid: The process whose descendants are measured.
        initial_bytes: Private memory that each process began with.
        directories: Descriptors of the session's tmpfs mounts.
    """
    private = [private_bytes(child) for child in descendants(pid)]
    grown = sum(max(0, process_bytes - initial_bytes) for process_bytes in private)
    return grown + sum(map(file_bytes, directories)) + socket_bytes(pid)


def private_bytes(pid: int) -> int:
    """Return the bytes of private memory of a process; 0 if it has ended."""
    return _fields(pid, "status", (b"RssAnon:",)) or 0


def _steadily(pid: int, read: Callable[[list[int]], tuple[int, bool]]) -> int:
    """Return the largest of several readings of the processes below `pid`.

    Args:
        pid: The process whose descendants are read.
        read: Returns the bytes of these processes, and False if one of them ended meanwhile. One reading is enough if
            none did.
    """
    largest = 0
    for _ in range(WALKS):
        total, steady = read(list(descendants(pid)))
        largest = max(largest, total)
        if steady:
            break
    return largest


def _upper_bound(pids: list[int]) -> tuple[int, bool]:
    """Return the resident bytes of the processes, in which shared pages count several times. A `read` of _steadily."""
    readings = [_fields(pid, "status", (b"RssAnon:", b"RssShmem:", b"VmPTE:")) for pid in pids]
    return sum(reading or 0 for reading in readings), None not in readings


def _exact(pids: list[int], files: int) -> tuple[int, bool]:
    """Return the bytes of the processes, in which shared pages count once. A `read` of _steadily.

    The kernel walks the page tables for it: milliseconds for a large process.
    """
    private = 0
    shared = 0
    steady = True
    for pid in pids:
        resident = _fields(pid, "status", (b"RssAnon:",))
        proportional = _fields(pid, "smaps_rollup", (b"Pss_Anon:",))
        # a process can forbid its owner to read smaps_rollup
        private += (resident or 0) if proportional is None else proportional
        private += _fields(pid, "status", (b"VmPTE:",)) or 0
        shared += _fields(pid, "smaps_rollup", (b"Pss_Shmem:",)) or 0
        steady = steady and resident is not None
    return private + max(0, shared - files), steady  # mapped files of the call's tmpfs are counted among its files


def _fields(pid: int, name: str, fields: tuple[bytes, ...]) -> int | None:
    """Return the sum of fields of a file in /proc, in bytes; None if the process has ended or cannot be read.

    A zombie has no such fields, so its sum is 0.
    """
    try:
        with open(f"/proc/{pid}/{name}", "rb") as f:
            return sum(int(line.split()[1]) << 10 for line in f if line.startswith(fields))
    except OSError:
        return None


def file_bytes(directory: int) -> int:
    """Return the bytes that the file system of an open directory holds."""
    fs = os.fstatvfs(directory)
    return (fs.f_blocks - fs.f_bfree) * fs.f_frsize + (fs.f_files - fs.f_ffree) * INODE_BYTES


def files(directory: int) -> int:
    """Return the number of files that the file system of an open directory holds, with a name or without."""
    fs = os.fstatvfs(directory)
    return fs.f_files - fs.f_ffree


def _descriptors(pid: int) -> int:
    """Return the number of open descriptors of the processes below `pid`. It is 0 before Linux 6.2, and for processes
    that have ended."""
    total = 0
    for child in descendants(pid):
        with suppress(OSError):
            total += os.stat(f"/proc/{child}/fd").st_size
    return total


def socket_bytes(pid: int, tcp_bytes: int = SOCKET_BYTES) -> int:
    """Return the bytes that the sockets of a process's network namespace may hold, including sockets without a
    process."""
    with suppress(OSError), open(f"/proc/{pid}/net/sockstat", "rb") as f:
        if match := _SOCKETS.match(f.read(256)):
            return int(match[1]) * SOCKET_BYTES + int(match[2]) * (tcp_bytes - SOCKET_BYTES)
    return 0


def host_tcp_bytes() -> int:
    """Return the `tcp_bytes` of a network namespace whose limits nobody has set: it begins with the host's."""
    total = 0
    for name in ("tcp_rmem", "tcp_wmem"):
        with suppress(OSError), open(f"/proc/sys/net/ipv4/{name}") as f:
            total += int(f.read().split()[2])
    return min(max(total, SOCKET_BYTES), MAX_TCP_BYTES)
