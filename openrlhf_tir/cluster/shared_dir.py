"""Every rank and engine proves, before it loads anything, that it sees the controller's run directory and models.

Otherwise pushes would fail for minutes as unverified, a checkpoint would lack the shards of other nodes without an
error, and a model's path would be taken for a name of the hub.
"""

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
"""Seconds after which a network file system may show a new file on other nodes."""


@contextmanager
def marked(run_dir: Path) -> Iterator[Path]:
    """Create the controller's mark, which exists while the block runs, and yield its path.

    It is an empty file, which fits on a full disk too. Its name is random, so no node can have cached its absence.

    Raises:
        OSError: The directory takes no files.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    mark = run_dir / f".mark-{secrets.token_hex(16)}"
    mark.touch()
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)


def prove(mark: Path, who: str, node: str, *, appears_s: float = APPEARS_S) -> None:
    """Check that this process sees the mark and can write beside it.

    Args:
        mark: The controller's mark.
        who: Name of this process, for the message.
        node: Address of its node, for the message.
        appears_s: Seconds to wait for the mark.

    Raises:
        ConfigError: The mark cannot be seen, or no file can be written.
    """
    give_up = time.monotonic() + appears_s
    tries = 0
    while not os.path.exists(mark):  # False also for a directory that may not be read.
        if time.monotonic() >= give_up:
            raise ConfigError(
                f"{who} on node {node} does not see the controller's run directory {mark.parent}: a file that the"
                " controller made there is missing. Weights and checkpoints go through it: put --run-dir on a file"
                " system that all nodes mount at the same path."
            )
        time.sleep(backoff_s(tries, first_s=0.1, cap_s=1.0))
        tries += 1
    own_file = mark.with_name(f"{mark.name}-{node}-{os.getpid()}")
    try:
        own_file.touch()
    except OSError as error:
        raise ConfigError(
            f"{who} on node {node} cannot write to the run directory {mark.parent}: {error.strerror}."
            " Make it writable from all nodes."
        ) from None
    finally:
        with suppress(OSError):
            own_file.unlink(missing_ok=True)


def check_models(who: str, node: str, **models: str) -> None:
    """Check that this node sees the models that a process loads from directories.

    Args:
        who: Name of this process, for the message.
        node: Address of its node, for the message.
        models: Section of a model -> its directory, or its name of the hub; "" where there is none.

    Raises:
        ConfigError: A directory is not there.
    """
    for section, name in models.items():
        if os.path.isabs(name) and not os.path.isdir(name):
            raise ConfigError(
                f"{who} on node {node} does not see {section}.model_name_or_path = {name!r}. Put it on a file system"
                " that all nodes mount at the same path, copy it to that path on each, or give a name of the hub.",
                code="no_model",
                setting=f"{section}.model_name_or_path",
            )
