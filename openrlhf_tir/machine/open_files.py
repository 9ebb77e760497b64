"""The limit of open files of this process."""

from __future__ import annotations

import resource

OPEN_FILES = 1 << 16
"""Enough for a process; a program that closes every number below its limit when it starts takes minutes beyond."""


def raise_open_files() -> None:
    """Raise the limit of open files to `OPEN_FILES`, or to what the system allows, for this process and its children.

    The usual 1,024 are soon passed by one connection for each call that is under way. A higher limit stays.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
