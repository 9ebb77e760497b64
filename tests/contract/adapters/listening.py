"""Another program's server on a port of its own, until the block ends."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence

from ...free_port import free_port

START_TIMEOUT_S = 600.0


@contextlib.contextmanager
def listening(command: Sequence[str], **env: str) -> Iterator[int]:
    """The port on which `command PORT` accepts connections."""
    port = free_port()
    process = subprocess.Popen([*command, str(port)], env={**os.environ, **env})
    try:
        give_up = time.monotonic() + START_TIMEOUT_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert process.poll() is None and time.monotonic() < give_up, f"{' '.join(command)} does not listen"
            time.sleep(0.05)
        yield port
    finally:
        process.kill()
        process.wait()
