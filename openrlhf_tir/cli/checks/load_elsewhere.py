"""Load a user's file in another process, because it may import torch and vLLM, start threads, or hang.

`python -m openrlhf_tir.cli.checks.load_elsewhere REPORT MODULE:PLACE NAME` writes what is wrong to the file REPORT, or
nothing if the user's file can be used.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from ...errors import ConfigError
from ...user_code import plugins

LOAD_S = 300.0
"""Deadline in seconds. Importing torch and vLLM takes a minute on a busy machine."""


def load_elsewhere(place: str, name: str) -> None:
    """Load a user's function in another process.

    Args:
        place: "module:attribute" of a plugins.Place.
        name: The function, file.py:function.

    Raises:
        ConfigError: It cannot be loaded; the message gives file and line.
    """
    with tempfile.NamedTemporaryFile(prefix="openrlhf_tir_load_") as report:
        command = [sys.executable, "-m", __name__, report.name, place, name]
        try:
            finished = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LOAD_S)
        except subprocess.TimeoutExpired:
            raise ConfigError(
                f"{name} was not loaded within {LOAD_S:g} s: what it does when it is imported does not end."
                " Move that into a function.",
                code="user_code",
            ) from None
        message = report.read().decode()
    if message:
        raise ConfigError(message, code="user_code")
    if finished.returncode:
        raise ConfigError(
            f"{name}: the process that loads it ended with code {finished.returncode}:"
            f" {finished.stderr.decode(errors='replace')[-600:].strip()}",
            code="user_code",
        )


def load_here(place: str, name: str) -> None:
    """Load a user's function in this process; see load_elsewhere."""
    module, _, attribute = place.rpartition(":")
    plugins.load(getattr(importlib.import_module(module), attribute), name)


def main() -> None:
    """Load the function that the command line names, and write what is wrong."""
    report, place, name = sys.argv[1:]
    try:
        load_here(place, name)
    except ConfigError as error:
        Path(report).write_text(str(error), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # The file may have started threads that do not end.


if __name__ == "__main__":
    main()
