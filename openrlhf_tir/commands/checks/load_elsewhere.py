"""Load a file of the user's in another process: it may import torch and vLLM, start threads, or hang. A mistake in it
is a ConfigError here.

python -m openrlhf_tir.commands.checks.load_elsewhere FD MODULE:PLACE NAME writes what is wrong to FD, nothing when it
can be used."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

from ...errors import ConfigError
from ...user_code import plugins

LOAD_S = 300.0
"""Importing torch and vLLM takes a minute on a starved host; one not loaded after five waits for something."""
SAID_BYTES = 1 << 15
"""Bytes that are shown of a complaint: fewer than a pipe holds."""


def load_elsewhere(place: str, name: str) -> None:
    """`place`: "module:attribute" of a plugins.Place. ConfigError for what cannot be loaded, with file and line."""
    ours, theirs = os.pipe()
    command = [sys.executable, "-m", __name__, str(theirs), place, name]
    try:
        done = subprocess.run(
            command, pass_fds=(theirs,), stdin=subprocess.DEVNULL, capture_output=True, timeout=LOAD_S
        )
        os.close(theirs)
        theirs = -1
        said = os.read(ours, SAID_BYTES).decode()
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"{name} was not loaded within {LOAD_S:g} s: what it does when it is imported does not end."
            " Move that into a function."
        ) from None
    finally:
        os.close(ours)
        if theirs >= 0:
            os.close(theirs)
    if said:
        raise ConfigError(said)
    if done.returncode:
        raise ConfigError(
            f"{name}: the process that loads it ended with code {done.returncode}:"
            f" {done.stderr.decode(errors='replace')[-600:].strip()}"
        )


def main() -> None:
    fd, place, name = sys.argv[1:]
    module, _, attribute = place.rpartition(":")
    try:
        plugins.load(getattr(importlib.import_module(module), attribute), name)
    except ConfigError as e:
        os.write(int(fd), str(e).encode()[:SAID_BYTES])
    sys.stdout.flush()
    os._exit(0)  # whatever threads the file has started


if __name__ == "__main__":
    main()
