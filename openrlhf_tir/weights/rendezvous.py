"""Where the processes of a torch group find each other: a TCP store that listens before anybody is told its port."""

from __future__ import annotations

import socket
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout


def served_store(address: str, timeout: timedelta = default_pg_timeout) -> dist.TCPStore:
    """Listens on `address` only, at a free port (its `port`), for as long as it is kept; `timeout` of whoever waits for
    a key. A port that is looked up and let go may be another program's by the time that a group would listen there:
    rank 0 has imported DeepSpeed in between. Raises OSError where the address is not this node's."""
    listening = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    port, listen_fd = listening.getsockname()[1], listening.detach()
    return dist.TCPStore(
        address, port, is_master=True, timeout=timeout, wait_for_workers=False, master_listen_fd=listen_fd
    )
