"""Where the processes of a torch group meet: a TCP store that listens before any process is told its port."""

from __future__ import annotations

import socket
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout


def served_store(address: str, timeout: timedelta = default_pg_timeout) -> dist.TCPStore:
    """Return a store that listens at a free port, its `port`, for as long as it is referenced.

    A port that is looked up and released may belong to another program when the group would listen there, because rank
    0 imports DeepSpeed in between. So the store takes over a socket that listens already.

    Args:
        address: Address of this node to listen on.
        timeout: Deadline of a process that waits for a key.

    Raises:
        OSError: The address is not this node's.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listening = socket.create_server((address, 0), family=family)
    port = listening.getsockname()[1]
    listen_fd = listening.detach()
    return dist.TCPStore(
        address, port, is_master=True, timeout=timeout, wait_for_workers=False, master_listen_fd=listen_fd
    )
