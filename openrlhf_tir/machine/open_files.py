"""The limit of open files of this process."""

from __future__ import annotations

import resource

OPEN_FILES = 1 << 16
"""The limit where the system has no hard one."""


def raise_open_files() -> None:
    """Raise the limit of open files to the most that the system allows, for this process and those that it starts.

    The usual 1,024 are soon passed by one connection for each call that is under way.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else OPEN_FILES, hard))
