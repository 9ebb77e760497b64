"""Shared directory: every rank and engine proves, before it loads anything, that the run directory it sees is the
controller's.

Else pushes would fail for minutes as unverified, and a checkpoint would lack other nodes' shards without an error."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import ConfigError
from ..waiting.backoff import backoff_s

APPEARS_S = 10.0
"""A network file system may show a new file seconds later on other nodes."""


@contextmanager
def marked(run_dir: Path) -> Iterator[Path]:
    """The controller's mark, there as long as it is asked for: an empty file, which a full disk still takes, of a name
    that nobody can have by chance nor has looked for before, so no node remembers its absence. Raises OSError."""
    run_dir.mkdir(parents=True, exist_ok=True)
    mark = run_dir / f".mark-{secrets.token_hex(16)}"
    mark.touch()
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)


def prove(mark: Path, who: str, node: str, *, appears_s: float = APPEARS_S) -> None:
    """Called by `who`, on `node`. Raises ConfigError when the mark cannot be seen, or no files be written from here."""
    give_up, tries = time.monotonic() + appears_s, 0
    while not os.path.exists(mark):  # False also for a directory that may not be looked into
        if time.monotonic() >= give_up:
            raise ConfigError(
                f"{who} on node {node} does not see the controller's run directory {mark.parent}: a file that the"
                " controller made there is missing. Weights and checkpoints go through it: put --run-dir on a file"
                " system that all nodes mount at the same path."
            )
        time.sleep(backoff_s(tries, first_s=0.1, cap_s=1.0))
        tries += 1
    own = mark.with_name(f"{mark.name}-{node}-{os.getpid()}")
    try:
        own.touch()
    except OSError as e:
        raise ConfigError(
            f"{who} on node {node} cannot write to the run directory {mark.parent}: {e.strerror}."
            " Make it writable from all nodes."
        ) from None
    finally:
        with suppress(OSError):
            own.unlink(missing_ok=True)
