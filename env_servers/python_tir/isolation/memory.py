"""Memory: what the processes of one call hold together, as nearly as it can be read without a control group.

    private pages       of every process; pages shared by a fork count once (Pss)
    page tables         of every process
    files               of the call's own tmpfs: blocks in use, mapped or not, with a name or without; and the kernel's
                        record of each
    sockets             of the call's own network namespace, in flight ones too: each as what its buffers may hold.
                        Where there is no such namespace every open descriptor counts as one

Memory that no process maps any more cannot be read anywhere, so what would make it is refused by `seccomp`: shared
anonymous mappings (a file in /dev/shm does the same), vmsplice, larger socket buffers. Not counted: pipe buffers (the
kernel gives a user 64 MiB, then two pages for each pipe), and the kernel's records of mappings, descriptors and locks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress

from .tree import descendants

SOCKET_BYTES = 512 << 10
"""Twice the kernel's default of a buffer, rounded up: a buffer's last packet may pass its limit. TCP's are bounded to
this in `warm.slot`."""
PAIR_BYTES = 256 << 10
"""One end of a socket pair, the only kind of socket where the network is the host's: what was not yet read."""
MAX_TCP_BYTES = 64 << 20
"""Hosts with fast networks allow connections gigabytes, which hardly one holds; counted so, no snippet had any."""
INODE_BYTES = 1 << 10
"""What tmpfs keeps of a file besides its content: inode, name, a short symbolic link."""
WALKS = 5
"""How often the processes are read when processes end meanwhile: a chain of forks outruns one reading, hardly five."""
_SOCKETS = re.compile(rb"sockets: used (\d+)\nTCP: inuse (\d+)")


def used_bytes(
    pid: int, enough: int, *, directories: Sequence[int] = (), net: int | None = None, tcp_bytes: int = SOCKET_BYTES
) -> int:
    """Memory of everything below `pid`: exact above `enough`, an upper bound below it.

    `directories`: descriptors of the call's tmpfs mounts; `net`: a process in its network namespace, None where it has
    none of its own; `tcp_bytes`: what each end of a connection may hold.
    """
    files = sum(map(file_bytes, directories))
    rest = files + (_descriptors(pid) * PAIR_BYTES if net is None else socket_bytes(net, tcp_bytes))
    bound = _steadily(pid, _upper_bound)
    if bound + rest <= enough:
        return bound + rest
    return _steadily(pid, lambda pids: _exact(pids, files)) + rest


def session_bytes(pid: int, own: int, directories: Sequence[int]) -> int:
    """What the stopped processes below `pid` hold beyond the `own` private memory that each began with."""
    private = [_fields(child, "status", (b"RssAnon:",)) or 0 for child in descendants(pid)]
    return sum(max(0, held - own) for held in private) + sum(map(file_bytes, directories)) + socket_bytes(pid)


def private_bytes(pid: int) -> int:
    return _fields(pid, "status", (b"RssAnon:",)) or 0


def _steadily(pid: int, read: Callable[[list[int]], tuple[int, bool]]) -> int:
    """The largest of some readings of the processes below `pid`; one is enough when none of them ends meanwhile."""
    largest = 0
    for _ in range(WALKS):
        total, steady = read(list(descendants(pid)))
        largest = max(largest, total)
        if steady:
            break
    return largest


def _upper_bound(pids: list[int]) -> tuple[int, bool]:
    sums = [_fields(pid, "status", (b"RssAnon:", b"RssShmem:", b"VmPTE:")) for pid in pids]
    return sum(found or 0 for found in sums), None not in sums


def _exact(pids: list[int], files: int) -> tuple[int, bool]:
    """The kernel walks the page tables for proportional shares: milliseconds for a large process."""
    private = 0
    shared = 0
    steady = True
    for pid in pids:
        seen = _fields(pid, "status", (b"RssAnon:",))
        own = _fields(pid, "smaps_rollup", (b"Pss_Anon:",))
        private += (seen or 0) if own is None else own  # a process can forbid its owner to look closer
        private += _fields(pid, "status", (b"VmPTE:",)) or 0
        shared += _fields(pid, "smaps_rollup", (b"Pss_Shmem:",)) or 0
        steady = steady and seen is not None
    return private + max(0, shared - files), steady  # mapped files of the call's tmpfs are among its files


def _fields(pid: int, name: str, fields: tuple[bytes, ...]) -> int | None:
    """The fields' sum in bytes; None where the process has ended or cannot be read. A zombie has no such fields: 0."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as f:
            return sum(int(line.split()[1]) << 10 for line in f if line.startswith(fields))
    except OSError:
        return None


def file_bytes(directory: int) -> int:
    """What the file system of an open directory holds."""
    fs = os.fstatvfs(directory)
    return (fs.f_blocks - fs.f_bfree) * fs.f_frsize + (fs.f_files - fs.f_ffree) * INODE_BYTES


def files(directory: int) -> int:
    """How many the file system of an open directory holds, with a name or without."""
    fs = os.fstatvfs(directory)
    return fs.f_files - fs.f_ffree


def _descriptors(pid: int) -> int:
    """Open in the processes below `pid`. Linux 6.2 and later; before, and for processes that have ended, 0."""
    total = 0
    for child in descendants(pid):
        with suppress(OSError):
            total += os.stat(f"/proc/{child}/fd").st_size
    return total


def socket_bytes(pid: int, tcp_bytes: int = SOCKET_BYTES) -> int:
    """What the sockets of the process's network namespace may hold, also those that are no process's any more."""
    with suppress(OSError), open(f"/proc/{pid}/net/sockstat", "rb") as f:
        if found := _SOCKETS.match(f.read(256)):
            return int(found[1]) * SOCKET_BYTES + int(found[2]) * (tcp_bytes - SOCKET_BYTES)
    return 0


def host_tcp_bytes() -> int:
    """`tcp_bytes` of a network namespace that nobody has set: it begins with the host's limits."""
    total = 0
    for name in ("tcp_rmem", "tcp_wmem"):
        with suppress(OSError), open(f"/proc/sys/net/ipv4/{name}") as f:
            total += int(f.read().split()[2])
    return min(max(total, SOCKET_BYTES), MAX_TCP_BYTES)
