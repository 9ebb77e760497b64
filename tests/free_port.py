"""A port for a program that must be told one."""

from __future__ import annotations

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """One that the kernel gives nobody who asks for any: it may take the program seconds to listen there."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with suppress(OSError), socket.create_server(("", port)):
            return port
    raise OSError("None of 100 ports between 20000 and 32000 is free.")
