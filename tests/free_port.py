"""A port for a program that must be told one."""

from __future__ import annotations

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """One that the kernel gives nobody who asks for any: it may take the program seconds to listen there."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with suppress(OSError), socket.socket() as s:
            s.bind(("", port))
            return port
