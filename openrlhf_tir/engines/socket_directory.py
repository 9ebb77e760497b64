"""A directory of this process's own for the sockets of vLLM's processes, so that they can be removed.

vLLM 0.29 binds two sockets or more for each engine, as files with random names in the temporary directory, and nothing
unlinks them, even if the engine ends in good order. A process that was killed leaves its directory, which the next
engine of this user on the node removes.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from uuid import uuid4

from ..weights.node_rooms import PREFIX, Room, sweep

log = logging.getLogger(__name__)
VARIABLE = "VLLM_RPC_BASE_PATH"
"""Where vLLM binds its sockets."""
LONGEST = 107 - len(f"/{uuid4()}")
"""Characters of the longest directory: the path of a Unix socket has at most 107."""
SHORT = "/tmp"
PATIENCE_S = 10.0
"""Seconds to wait while another engine's start takes the directory, not yet locked, for one that was left."""


@contextmanager
def socket_directory() -> Iterator[None]:
    """Let vLLM bind its sockets in this process's directory within the block, in which the engine is started.

    Where VLLM_RPC_BASE_PATH is set already, or the file system has no locks, it is left to vLLM.
    """
    room = _room()
    if room is None or not _hold(room):
        yield
        return
    os.environ[VARIABLE] = str(room.here)
    try:
        yield
    finally:
        del os.environ[VARIABLE]  # a process that this one starts later may outlive the directory


def remove_socket_directory() -> None:
    """Remove the directory, if there is one. Sockets that are connected stay connected."""
    if room := _room():
        room.remove()


def _hold(room: Room) -> bool:
    """Create the room, and return whether that worked: an engine needs sockets, and not their removal."""
    try:
        sweep(room.here.parent)
        room.hold(PATIENCE_S)
    except OSError as error:
        log.warning("vLLM's sockets stay behind when this engine ends: %s cannot be used: %s.", room.here, error)
        room.remove()
        return False
    return True


@cache
def _room() -> Room | None:
    """Return this process's room. It is the same for all of its engines: vLLM keeps the first path that it has read."""
    if VARIABLE in os.environ:
        return None
    name = f"{PREFIX}{os.geteuid()}_{uuid4().hex[:8]}"
    here = Path(tempfile.gettempdir(), name)
    # A job's own temporary directory may be too long for vLLM's sockets too.
    return Room(here if len(os.fsencode(here)) <= LONGEST else Path(SHORT, name))
